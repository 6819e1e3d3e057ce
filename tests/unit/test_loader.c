/* SPDX-License-Identifier: Apache-2.0 */
/* Model folders and the block loader: blocks equal direct reads with and without prefetch, quantized modules are
 * dequantized, folders with something missing are refused, weights are moved or converted. */
#include "dpquant/loader.h"
#include "tiny_folder.h"

static void assert_same_tensor(const dpq_model_folder *folder, const char *name, const dpq_tensor *found)
{
    const dpq_st_entry *entry = dpq_st_find(folder->store, name);
    assert_non_null(entry);
    void *data = malloc((size_t)entry->bytes);
    expect_ok(dpq_st_read(folder->store, entry, data));
    assert_int_equal(found->rank, entry->rank);
    if (found->dtype == entry->dtype) {
        assert_int_equal(dpq_tensor_bytes(found), entry->bytes);
        assert_memory_equal(found->data, data, (size_t)entry->bytes);
    } else {
        assert_int_equal(found->dtype, DPQ_DTYPE_F32);
        for (int64_t i = 0; i < dpq_tensor_count(found); i++) {
            assert_true(((const float *)found->data)[i] == dpq_bf16_to_f32(((const uint16_t *)data)[i]));
        }
    }
    free(data);
}

static void assert_same_block(const dpq_model_folder *folder, int64_t layer, const dpq_block_source *source)
{
    char name[DPQ_NAME_BYTES], tensor[DPQ_NAME_BYTES + 16];
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        dpq_model_linear_name(&folder->config, layer, role, name);
        snprintf(tensor, sizeof tensor, "%s.weight", name);
        assert_same_tensor(folder, tensor, &source->w[role]);
        assert_null(source->bias[role].data);
    }
    dpq_model_norm_name(&folder->config, layer, DPQ_NORM_INPUT, name);
    assert_same_tensor(folder, name, &source->norm[DPQ_NORM_INPUT]);
    dpq_model_norm_name(&folder->config, layer, DPQ_NORM_POST, name);
    assert_same_tensor(folder, name, &source->norm[DPQ_NORM_POST]);
    assert_int_equal(source->norm[DPQ_NORM_POST].dtype, DPQ_DTYPE_F32);
    assert_null(source->norm[DPQ_NORM_Q].data);
}

static void test_blocks_in_any_order(void **state)
{
    (void)state;
    dpq_model_folder folder;
    dpq_loader *loader = NULL;
    expect_ok(dpq_model_folder_open(TINY, false, &folder));
    assert_false(folder.quantized);
    assert_int_equal(folder.config.n_layers, 4);
    expect_ok(dpq_loader_create(&folder, false, &loader));
    const int64_t order[] = {0, 1, 2, 3, 3, 1, 0, 2}; /* prefetched, the last one, not the one prefetched, again */
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        dpq_block_source source;
        expect_ok(dpq_loader_take(loader, order[i], &source));
        assert_same_block(&folder, order[i], &source);
        dpq_block_source_fini(&source);
    }
    dpq_loader_destroy(&loader); /* while block 3 is prefetched */
    dpq_loader_destroy(&loader);
    dpq_model_folder_close(&folder);
}

static void test_block_bytes(void **state)
{
    (void)state;
    dpq_model_folder folder;
    expect_ok(dpq_model_folder_open(TINY, false, &folder));
    size_t weights = 256 * 256 + 2 * 128 * 256 + 256 * 256 + 3 * 640 * 256;
    assert_int_equal(dpq_block_source_bytes(&folder.config, DPQ_DTYPE_BF16), 2 * weights + 2 * 256 * 4);
    dpq_model_folder_close(&folder);
}

static void test_tensors_by_name(void **state)
{
    (void)state;
    dpq_model_folder folder;
    dpq_tensor t;
    expect_ok(dpq_model_folder_open(TINY, false, &folder));
    expect_ok(dpq_folder_read_tensor(&folder, dpq_model_embed_name(&folder.config), &t));
    assert_same_tensor(&folder, dpq_model_embed_name(&folder.config), &t);
    dpq_tensor_fini(&t);
    expect_error(dpq_folder_read_tensor(&folder, "no.such", &t), DPQ_E_INPUT, "no.such");
    assert_null(t.data);
    expect_error(dpq_folder_read_vector(&folder, dpq_model_embed_name(&folder.config), &t), DPQ_E_INPUT, "1 dimension");
    assert_null(t.data);
    dpq_model_folder_close(&folder);
}

static void test_missing_tensors(void **state)
{
    static const char *const omitted[] = {"model.layers.2.mlp.up_proj.weight", "model.layers.3.input_layernorm.weight",
                                          "model.norm.weight", "model.embed_tokens.weight"};
    for (size_t i = 0; i < sizeof omitted / sizeof omitted[0]; i++) {
        char name[16];
        dpq_model_folder folder;
        snprintf(name, sizeof name, "dense%zu", i);
        const char *dir = in_folder(state, name);
        tiny_folder(dir, &(tiny_recipe){.omit = omitted[i]});
        expect_error(dpq_model_folder_open(dir, true, &folder), DPQ_E_INPUT, omitted[i]);
        assert_null(folder.store);
    }
}

static const dpq_scheme symmetric = {.bits = 4, .group_size = 64, .symmetric = true, .signed_scale = true};
static const dpq_scheme asymmetric = {.bits = 3, .group_size = -1};

/* Blocks of a quantized folder against the rule of tiny_value on the dense weights. */
static void check_quantized(const char *dir, const dpq_scheme *scheme, bool round_bf16, const char *dense)
{
    dpq_model_folder plain, folder;
    dpq_loader *loader = NULL;
    expect_ok(dpq_model_folder_open(TINY, false, &plain));
    expect_ok(dpq_model_folder_open(dir, true, &folder));
    assert_true(folder.quantized);
    expect_ok(dpq_loader_create(&folder, round_bf16, &loader));
    for (int64_t layer = 0; layer < 2; layer++) {
        dpq_block_source source;
        expect_ok(dpq_loader_take(loader, layer, &source));
        for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
            char module[DPQ_NAME_BYTES], name[DPQ_NAME_BYTES + 16];
            dpq_tensor w;
            dpq_model_linear_name(&plain.config, layer, role, module);
            snprintf(name, sizeof name, "%s.weight", module);
            expect_ok(dpq_folder_read_tensor(&plain, name, &w));
            const dpq_tensor *found = &source.w[role];
            int64_t k = w.dim[1], width = dpq_scheme_group_width(scheme, k);
            if (dense != NULL && strcmp(module, dense) == 0) {
                assert_memory_equal(found->data, w.data, dpq_tensor_bytes(&w));
                dpq_tensor_fini(&w);
                continue;
            }
            assert_int_equal(found->dtype, round_bf16 ? DPQ_DTYPE_BF16 : DPQ_DTYPE_F32);
            float row[640];
            for (int64_t i = 0; i < w.dim[0]; i += 37) {
                for (int64_t j = 0; j < k; j++) {
                    row[j] = dpq_bf16_to_f32(((const uint16_t *)w.data)[i * k + j]);
                }
                for (int64_t j = 0; j < k; j++) {
                    int code;
                    float scale;
                    float expected = tiny_value(scheme, row + j / width * width, width, j % width, &scale, &code);
                    if (round_bf16) {
                        assert_int_equal(((const uint16_t *)found->data)[i * k + j], dpq_f32_to_bf16(expected));
                    } else {
                        assert_true(((const float *)found->data)[i * k + j] == expected);
                    }
                }
            }
            dpq_tensor_fini(&w);
        }
        dpq_block_source_fini(&source);
    }
    dpq_loader_destroy(&loader);
    dpq_model_folder_close(&folder);
    dpq_model_folder_close(&plain);
}

static void test_quantized_blocks(void **state)
{
    const char *dense = "model.layers.1.mlp.down_proj";
    tiny_folder(in_folder(state, "sym"), &(tiny_recipe){.quantize = true, .scheme = symmetric, .dense = dense});
    check_quantized(in_folder(state, "sym"), &symmetric, false, dense);
    check_quantized(in_folder(state, "sym"), &symmetric, true, dense);
    tiny_folder(in_folder(state, "asym"), &(tiny_recipe){.quantize = true, .scheme = asymmetric});
    check_quantized(in_folder(state, "asym"), &asymmetric, false, NULL);
}

static void test_quantized_refused(void **state)
{
    dpq_model_folder folder;
    const char *dir = in_folder(state, "sym");
    tiny_folder(dir, &(tiny_recipe){.quantize = true, .scheme = symmetric});
    expect_error(dpq_model_folder_open(dir, false, &folder), DPQ_E_UNSUPPORTED, "quantization_config");
    assert_null(folder.dir);
}

/* config.json promises more quantized modules than there are, and the other way round. */
static void test_quantized_tensors_missing(void **state)
{
    const char *module = "model.layers.1.mlp.down_proj";
    const char *missing = in_folder(state, "missing");
    const char *all = in_folder(state, "all");
    dpq_model_folder folder;
    char from[1024], to[1024];
    tiny_folder(missing, &(tiny_recipe){.quantize = true, .scheme = symmetric, .dense = module});
    tiny_folder(all, &(tiny_recipe){.quantize = true, .scheme = symmetric});
    snprintf(from, sizeof from, "%s/config.json", missing);
    snprintf(to, sizeof to, "%s/config.keep", missing);
    assert_int_equal(rename(from, to), 0);
    snprintf(to, sizeof to, "%s/config.json", all);
    expect_ok(dpq_file_copy(to, from));
    expect_error(dpq_model_folder_open(missing, true, &folder), DPQ_E_INPUT, "down_proj.weight_scale is missing");
    assert_int_equal(unlink(to), 0);
    snprintf(from, sizeof from, "%s/config.keep", missing);
    expect_ok(dpq_file_copy(from, to));
    expect_error(dpq_model_folder_open(all, true, &folder), DPQ_E_INPUT, "down_proj.weight is missing");
}

/* The group size of config.json does not fit the scales in the file. */
static void test_quantized_shape(void **state)
{
    const char *a = in_folder(state, "a");
    const char *b = in_folder(state, "b");
    dpq_scheme wider = symmetric;
    dpq_model_folder folder;
    char from[1024], to[1024];
    wider.group_size = 128;
    tiny_folder(a, &(tiny_recipe){.quantize = true, .scheme = symmetric});
    tiny_folder(b, &(tiny_recipe){.quantize = true, .scheme = wider});
    snprintf(from, sizeof from, "%s/config.json", b);
    snprintf(to, sizeof to, "%s/config.json", a);
    assert_int_equal(unlink(to), 0);
    expect_ok(dpq_file_copy(from, to));
    expect_error(dpq_model_folder_open(a, true, &folder), DPQ_E_INPUT,
                 "weight_scale: expected BF16 [256,2], found BF16 [256,4]");
}

/* A file cut short after it was opened: the error of the prefetch thread arrives at the take that needs the block. */
static void test_prefetch_error_is_carried(void **state)
{
    const char *dir = in_folder(state, "dense");
    char path[1024];
    dpq_model_folder folder;
    dpq_loader *loader = NULL;
    dpq_block_source source;
    tiny_folder(dir, &(tiny_recipe){0});
    expect_ok(dpq_model_folder_open(dir, false, &folder));
    expect_ok(dpq_loader_create(&folder, false, &loader));
    const dpq_st_entry *first = dpq_st_find(folder.store, "model.layers.1.mlp.down_proj.weight");
    assert_non_null(first);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    expect_ok(dpq_loader_take(loader, 2, &source)); /* starts to prefetch block 3 */
    dpq_block_source_fini(&source);
    dpq_loader_destroy(&loader);
    expect_ok(dpq_loader_create(&folder, false, &loader));
    assert_int_equal(truncate(path, (off_t)first->offset + 10), 0);
    expect_ok(dpq_loader_take(loader, 0, &source));
    dpq_block_source_fini(&source);
    dpq_error_clear();
    expect_error(dpq_loader_take(loader, 1, &source), DPQ_E_INPUT, "model.layers.1");
    assert_null(source.w[0].data);
    dpq_loader_destroy(&loader);
    dpq_model_folder_close(&folder);
}

static void test_no_such_folder(void **state)
{
    dpq_model_folder folder;
    expect_error(dpq_model_folder_open(in_folder(state, "none"), true, &folder), DPQ_E_INPUT, "config.json");
    assert_null(folder.dir);
}

static void test_weights_are_moved_or_converted(void **state)
{
    (void)state;
    const float values[] = {1.0f, -2.5f, 0.375f, 100.0f};
    dpq_tensor w;
    dpq_weight weight;
    expect_ok(dpq_tensor_create_2d(DPQ_DTYPE_BF16, 2, 2, &w));
    for (int i = 0; i < 4; i++) {
        ((uint16_t *)w.data)[i] = dpq_f32_to_bf16(values[i]);
    }
    const void *data = w.data;
    expect_ok(dpq_weight_prepare(&w, DPQ_DTYPE_BF16, DPQ_COMPUTE_BF16, &weight)); /* moved */
    assert_ptr_equal(weight.w.data, data);
    assert_null(w.data);
    w = weight.w;
    expect_ok(dpq_weight_prepare(&w, DPQ_DTYPE_BF16, DPQ_COMPUTE_F32, &weight)); /* widened */
    assert_null(w.data);
    assert_int_equal(weight.w.dtype, DPQ_DTYPE_F32);
    assert_memory_equal(weight.w.data, values, sizeof values);
    w = weight.w;
    data = w.data;
    expect_ok(dpq_weight_prepare(&w, DPQ_DTYPE_F32, DPQ_COMPUTE_F32, &weight));
    assert_ptr_equal(weight.w.data, data);
    dpq_weight_fini(&weight);
}

static void test_block_prepare(void **state)
{
    (void)state;
    dpq_model_folder folder;
    dpq_loader *loader = NULL;
    dpq_block_source source;
    dpq_block_weights weights;
    expect_ok(dpq_model_folder_open(TINY, false, &folder));
    expect_ok(dpq_loader_create(&folder, false, &loader));
    expect_ok(dpq_loader_take(loader, 1, &source));
    expect_ok(dpq_block_source_prepare(&source, DPQ_DTYPE_F32, DPQ_COMPUTE_F32, &weights));
    assert_null(source.w[DPQ_LINEAR_K].data);
    assert_null(source.norm[DPQ_NORM_INPUT].data);
    assert_same_tensor(&folder, "model.layers.1.self_attn.k_proj.weight", &weights.linear[DPQ_LINEAR_K].w);
    assert_int_equal(weights.linear[DPQ_LINEAR_K].w.dtype, DPQ_DTYPE_F32);
    assert_int_equal(weights.norm[DPQ_NORM_INPUT].dim[0], 256);
    dpq_block_weights_fini(&weights);
    dpq_block_source_fini(&source);
    dpq_loader_destroy(&loader);
    dpq_model_folder_close(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_in_any_order),
        cmocka_unit_test(test_block_bytes),
        cmocka_unit_test(test_tensors_by_name),
        folder_test(test_missing_tensors),
        folder_test(test_quantized_blocks),
        folder_test(test_quantized_refused),
        folder_test(test_quantized_tensors_missing),
        folder_test(test_quantized_shape),
        folder_test(test_prefetch_error_is_carried),
        folder_test(test_no_such_folder),
        cmocka_unit_test(test_weights_are_moved_or_converted),
        cmocka_unit_test(test_block_prepare),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
