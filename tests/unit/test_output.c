/* SPDX-License-Identifier: Apache-2.0 */
/* Where an output may go, how it gets its name, which side files come along, and that the last check finds what is
 * wrong. */
#include <sys/stat.h>

#include "../../src/engine/output_priv.h"
#include "dpquant/config.h"
#include "tiny_folder.h"

static void make_ours(const char *dir, const char *mark)
{
    char *path = NULL;
    expect_ok(dpq_dir_create(dir));
    expect_ok(dpq_path_join(dir, "dpquant.json", &path));
    put_file(path, mark, strlen(mark));
    dpq_free(path);
}

/* Path of NAME in the test's folder that stays valid in the whole test. */
static const char *keep(void **state, const char *name, char kept[512])
{
    snprintf(kept, 512, "%.255s/%.100s", (const char *)*state, name);
    return kept;
}

static void place_ok(const char *output, const char *model, bool overwrite, const char *expected)
{
    char *final_path = NULL;
    expect_ok(dpq_output_check_place(output, model, overwrite, &final_path));
    assert_string_equal(final_path, expected);
    dpq_free(final_path);
}

static void place_refused(const char *output, const char *model, bool overwrite, const char *part)
{
    char *final_path = (char *)(uintptr_t)1;
    expect_error(dpq_output_check_place(output, model, overwrite, &final_path), DPQ_E_CONFIG, part);
    assert_null(final_path);
}

static void test_parents(void **state)
{
    bool exist = true;
    expect_error(dpq_output_check_parents(NULL, &exist), DPQ_E_CONFIG, "output: required");
    assert_false(exist);
    expect_ok(dpq_output_check_parents(in_folder(state, "out"), &exist));
    assert_true(exist);
    expect_ok(dpq_output_check_parents(in_folder(state, "a/out"), &exist));
    assert_false(exist);
}

static void test_place_and_model(void **state)
{
    char kept[512];
    const char *model = keep(state, "model", kept);
    expect_ok(dpq_dir_create(model));
    place_ok(in_folder(state, "out"), model, false, in_folder(state, "out"));
    place_ok(in_folder(state, "model2"), model, false,
             in_folder(state, "model2")); /* a common beginning is no parent */
    place_ok(in_folder(state, "model/../out"), model, false, in_folder(state, "out"));
    place_refused(in_folder(state, "model"), model, true, "must not be the same or lie in each other");
    place_refused(in_folder(state, "model/."), model, true, "must not be the same");
    place_refused(in_folder(state, "model/out"), model, false, "must not be the same");
    place_refused((const char *)*state, model, true, "must not be the same");
    assert_int_equal(symlink("model", in_folder(state, "link")), 0);
    place_refused(in_folder(state, "link"), model, true, "must not be the same");
    place_refused(in_folder(state, "out"), "/", true, "must not be the same"); /* everything lies in the root */
}

static void test_place_that_is_taken(void **state)
{
    char kept[512];
    const char *model = keep(state, "model", kept);
    expect_ok(dpq_dir_create(model));
    make_ours(in_folder(state, "ours"), "{}");
    place_refused(in_folder(state, "ours"), model, false, "exists; give --overwrite");
    place_ok(in_folder(state, "ours"), model, true, in_folder(state, "ours"));
    expect_ok(dpq_dir_create(in_folder(state, "theirs")));
    place_refused(in_folder(state, "theirs"), model, true, "was not written by dpquant");
    put_file(in_folder(state, "file"), "x", 1);
    place_refused(in_folder(state, "file"), model, true, "was not written by dpquant");
}

static void test_partial_and_publish(void **state)
{
    char *partial = NULL;
    char final_path[512], mark[16];
    keep(state, "out", final_path);
    expect_ok(dpq_output_open_place(final_path, 1000, &partial));
    assert_string_equal(partial, in_folder(state, "out.partial"));
    put_file(in_folder(state, "out.partial/left"), "x", 1);
    dpq_free(partial);
    /* one that was interrupted is cleared */
    expect_ok(dpq_output_open_place(final_path, 1000, &partial));
    assert_false(dpq_path_exists(in_folder(state, "out.partial/left")));
    assert_false(dpq_path_exists(final_path));
    put_file(in_folder(state, "out.partial/dpquant.json"), "new", 3);
    make_ours(final_path, "old");
    expect_ok(dpq_output_publish(partial, final_path));
    dpq_free(partial);
    FILE *f = fopen(in_folder(state, "out/dpquant.json"), "r");
    assert_int_equal(fread(mark, 1, sizeof mark, f), 3);
    fclose(f);
    assert_memory_equal(mark, "new", 3);
    dpq_str_list left = {0};
    expect_ok(dpq_dir_list(*state, &left));
    assert_int_equal(left.count, 1); /* no partial, no old one */
    dpq_str_list_fini(&left);
    expect_ok(dpq_dir_list(final_path, &left));
    assert_int_equal(left.count, 1); /* no marker */
    dpq_str_list_fini(&left);
}

static void test_partial_refused(void **state)
{
    char *partial = (char *)(uintptr_t)1;
    expect_ok(dpq_dir_create(in_folder(state, "out.partial")));
    put_file(in_folder(state, "out.partial/theirs"), "x", 1);
    expect_error(dpq_output_open_place(in_folder(state, "out"), 1000, &partial), DPQ_E_CONFIG, "is in the way");
    assert_null(partial);
    assert_true(dpq_path_exists(in_folder(state, "out.partial/theirs")));
    expect_error(dpq_output_open_place(in_folder(state, "other"), (uint64_t)1 << 60, &partial), DPQ_E_DISK,
                 "bytes free, the output needs");
    assert_false(dpq_path_exists(in_folder(state, "other.partial")));
    expect_error(dpq_output_open_place(in_folder(state, "none/out"), 1, &partial), DPQ_E_DISK, "none");
}

static void test_side_files(void **state)
{
    static const char *const kept[] = {"tokenizer.json", "generation_config.json", "chat_template.jinja", "LICENSE"};
    static const char *const dropped[] = {"model.safetensors",
                                          "model.safetensors.index.json",
                                          "pytorch_model.bin",
                                          "config.json",
                                          "calib.h5",
                                          "dpquant.json",
                                          "dpquant-run.json",
                                          ".hidden",
                                          "consolidated.00.pth",
                                          "quantize_config.json"};
    char path[64];
    expect_ok(dpq_dir_create(in_folder(state, "m")));
    expect_ok(dpq_dir_create(in_folder(state, "o")));
    expect_ok(dpq_dir_create(in_folder(state, "m/onnx")));
    expect_ok(dpq_dir_create(in_folder(state, "m/additional_chat_templates")));
    put_file(in_folder(state, "m/onnx/x.txt"), "x", 1);
    put_file(in_folder(state, "m/additional_chat_templates/t.jinja"), "abc", 3);
    for (size_t i = 0; i < DPQ_COUNT_OF(kept); i++) {
        snprintf(path, sizeof path, "m/%s", kept[i]);
        put_file(in_folder(state, path), kept[i], strlen(kept[i]));
    }
    for (size_t i = 0; i < DPQ_COUNT_OF(dropped); i++) {
        snprintf(path, sizeof path, "m/%s", dropped[i]);
        put_file(in_folder(state, path), "x", 1);
    }
    expect_ok(dpq_output_copy_side_files(in_folder(state, "m"), in_folder(state, "o")));
    dpq_str_list found = {0};
    expect_ok(dpq_dir_list(in_folder(state, "o"), &found));
    assert_int_equal(found.count, DPQ_COUNT_OF(kept) + 1);
    dpq_str_list_fini(&found);
    for (size_t i = 0; i < DPQ_COUNT_OF(kept); i++) {
        char *bytes = NULL;
        size_t size = 0;
        snprintf(path, sizeof path, "o/%s", kept[i]);
        expect_ok(dpq_file_read_all(in_folder(state, path), 100, &bytes, &size));
        assert_int_equal(size, strlen(kept[i]));
        assert_memory_equal(bytes, kept[i], size);
        dpq_free(bytes);
    }
    assert_true(dpq_path_exists(in_folder(state, "o/additional_chat_templates/t.jinja")));
}

/* A folder quantized by the rule of tiny_folder.h against the plan that fits it; then with DENSE left dense, and with a
 * byte changed. */
static void verify(const char *dir, const dpq_settings *settings, dpq_status code, const char *part)
{
    dpq_model_folder source;
    dpq_plan *plan = NULL;
    expect_ok(dpq_model_folder_open(TINY, false, &source));
    expect_ok(dpq_plan_create(settings, &source, &plan));
    if (code == DPQ_OK) {
        expect_ok(dpq_output_verify(plan, dir));
    } else {
        expect_error(dpq_output_verify(plan, dir), code, part);
    }
    dpq_plan_destroy(&plan);
    dpq_model_folder_close(&source);
}

static void change_byte(const char *dir, const char *tensor, const unsigned char *bytes, size_t n)
{
    dpq_st_store *store = NULL;
    char path[600];
    expect_ok(dpq_st_open(dir, &store));
    const dpq_st_entry *entry = dpq_st_find(store, tensor);
    assert_non_null(entry);
    snprintf(path, sizeof path, "%s/%s", dir, dpq_st_shard_name(store, entry->shard));
    FILE *f = fopen(path, "r+b");
    assert_int_equal(fseek(f, (long)entry->offset, SEEK_SET), 0);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
    dpq_st_close(&store);
}

static void test_verify(void **state)
{
    const tiny_recipe recipe = {.quantize = true, .scheme = {.bits = 4, .group_size = 128, .symmetric = true}};
    tiny_recipe other = recipe;
    dpq_settings *settings = NULL;
    expect_ok(dpq_settings_create(&settings));
    tiny_folder(in_folder(state, "good"), &recipe);
    verify(in_folder(state, "good"), settings, DPQ_OK, NULL);
    other.dense = "model.layers.1.self_attn.o_proj";
    tiny_folder(in_folder(state, "dense"), &other);
    verify(in_folder(state, "dense"), settings, DPQ_E_BUG, "tensors, the plan has");
    other = recipe;
    other.scheme.bits = 8;
    tiny_folder(in_folder(state, "bits"), &other);
    verify(in_folder(state, "bits"), settings, DPQ_E_BUG, "another scheme than the plan");
    change_byte(in_folder(state, "good"), "model.layers.2.mlp.up_proj.weight_scale", (const unsigned char *)"\xc0\x7f",
                2);
    verify(in_folder(state, "good"), settings, DPQ_E_NUMERIC, "model.layers.2.mlp.up_proj");
    change_byte(in_folder(state, "good"), "model.layers.2.mlp.up_proj.weight_scale", (const unsigned char *)"\0\0", 2);
    verify(in_folder(state, "good"), settings, DPQ_E_NUMERIC, "model.layers.2.mlp.up_proj");
    change_byte(in_folder(state, "good"), "model.layers.2.mlp.up_proj.weight_scale", (const unsigned char *)"\0\x3f",
                2);
    change_byte(in_folder(state, "good"), "model.layers.0.input_layernorm.weight", (const unsigned char *)"\x12", 1);
    verify(in_folder(state, "good"), settings, DPQ_E_DISK, "model.layers.0.input_layernorm.weight reads back");
    dpq_settings_destroy(&settings);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        folder_test(test_parents),
        folder_test(test_place_and_model),
        folder_test(test_place_that_is_taken),
        folder_test(test_partial_and_publish),
        folder_test(test_partial_refused),
        folder_test(test_side_files),
        folder_test(test_verify),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
