/* SPDX-License-Identifier: Apache-2.0 */
/* Model descriptions: class defaults, both spellings of keys, refusals by name; names and shapes; the check of a
 * checkpoint. */
#include "io_test.h"

#include "dpquant/model.h"

#define TINY "tests/models/tiny"
#define SIZES_BUT_HEADS                                                                                                \
    "\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":4,\"vocab_size\":100,"                          \
    "\"max_position_embeddings\":2048"
#define SIZES   SIZES_BUT_HEADS ",\"num_attention_heads\":4"
#define LLAMA   "\"architectures\":[\"LlamaForCausalLM\"]," SIZES
#define MISTRAL "\"architectures\":[\"MistralForCausalLM\"]," SIZES_BUT_HEADS ",\"num_attention_heads\":16"
#define QWEN2   "\"architectures\":[\"Qwen2ForCausalLM\"]," SIZES ",\"num_key_value_heads\":2"
#define QWEN3   "\"architectures\":[\"Qwen3ForCausalLM\"]," SIZES ",\"num_key_value_heads\":2"

static dpq_status read_members(void **state, const char *members, dpq_model_config *config, bool *quantized)
{
    char text[4096];
    int n = snprintf(text, sizeof text, "{%s}", members);
    put_file(in_folder(state, "config.json"), text, (size_t)n);
    return dpq_model_config_read(*state, config, quantized);
}

static dpq_model_config good(void **state, const char *members)
{
    dpq_model_config config;
    bool quantized = true;
    expect_ok(read_members(state, members, &config, &quantized));
    assert_false(quantized);
    return config;
}

/* The message names the file besides PART. */
static void bad(void **state, const char *members, dpq_status code, const char *part)
{
    dpq_model_config config;
    bool quantized = true;
    dpq_status st = read_members(state, members, &config, &quantized);
    if (st == DPQ_OK || strstr(dpq_error_last()->text, part) == NULL) {
        print_message("config {%s}\n", members);
    }
    expect_error(st, code, part);
    expect_error(st, code, "config.json");
    assert_null(config.window);
    assert_false(quantized);
}

static void test_tiny(void **state)
{
    (void)state;
    dpq_model_config c;
    bool quantized = true;
    expect_ok(dpq_model_config_read(TINY, &c, &quantized));
    assert_false(quantized);
    assert_string_equal(c.architecture, "LlamaForCausalLM");
    assert_string_equal(c.model_type, "llama");
    assert_int_equal(c.hidden_size, 256);
    assert_int_equal(c.intermediate_size, 640);
    assert_int_equal(c.n_layers, 4);
    assert_int_equal(c.n_heads, 8);
    assert_int_equal(c.n_kv_heads, 4);
    assert_int_equal(c.head_dim, 32);
    assert_int_equal(c.vocab_size, 2048);
    assert_int_equal(c.max_positions, 512);
    assert_true(c.rms_eps == 1e-5);
    assert_true(c.tied_embeddings);
    assert_false(c.qkv_bias || c.o_bias || c.mlp_bias || c.qk_norm);
    assert_int_equal(c.rope.type, DPQ_ROPE_DEFAULT);
    assert_true(c.rope.theta == 10000.0 && c.rope.attention_factor == 1.0);
    assert_int_equal(c.rope.rotary_dim, 32);
    assert_int_equal(c.dtype, DPQ_DTYPE_BF16);
    assert_int_equal(c.window[3], 0);
    dpq_model_config_fini(&c);
    assert_null(c.window);
}

static void test_llama_defaults(void **state)
{
    dpq_model_config c = good(state, LLAMA);
    assert_int_equal(c.n_kv_heads, 4);
    assert_int_equal(c.head_dim, 16);
    assert_true(c.rms_eps == 1e-6 && c.rope.theta == 1e4);
    assert_false(c.tied_embeddings || c.qkv_bias || c.o_bias || c.mlp_bias);
    assert_int_equal(c.dtype, DPQ_DTYPE_F32);
    dpq_model_config_fini(&c);
    c = good(state,
             LLAMA ",\"attention_bias\":true,\"mlp_bias\":true,\"head_dim\":null,\"num_key_value_heads\":null,"
                   "\"hidden_act\":\"swish\",\"sliding_window\":7,\"dtype\":\"float16\",\"torch_dtype\":\"float32\"");
    assert_true(c.qkv_bias && c.o_bias && c.mlp_bias);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.n_kv_heads, 4);
    assert_int_equal(c.window[0], 0); /* the class has no window */
    assert_int_equal(c.dtype, DPQ_DTYPE_F16);
    dpq_model_config_fini(&c);
    c = good(state, "\"model_type\":\"llama\",\"head_dim\":40," SIZES);
    assert_int_equal(c.head_dim, 40); /* heads * width need not be the hidden size */
    dpq_model_config_fini(&c);
}

static void test_mistral(void **state)
{
    dpq_model_config c = good(state, MISTRAL);
    assert_int_equal(c.n_kv_heads, 8);
    assert_int_equal(c.window[0], 4096);
    assert_int_equal(c.window[3], 4096);
    dpq_model_config_fini(&c);
    c = good(state, MISTRAL ",\"sliding_window\":null,\"num_key_value_heads\":null,\"attention_bias\":true");
    assert_int_equal(c.n_kv_heads, 16);
    assert_int_equal(c.window[0], 0);
    assert_false(c.qkv_bias); /* no such key in this class */
    dpq_model_config_fini(&c);
    c = good(state, MISTRAL ",\"sliding_window\":9,\"layer_types\":[\"full_attention\",\"sliding_attention\","
                            "\"full_attention\",\"full_attention\"]");
    assert_int_equal(c.window[0], 0);
    assert_int_equal(c.window[1], 9);
    assert_int_equal(c.window[2], 0);
    dpq_model_config_fini(&c);
    bad(state, MISTRAL ",\"sliding_window\":0", DPQ_E_INPUT, "sliding_window");
    bad(state,
        MISTRAL ",\"sliding_window\":null,\"layer_types\":[\"sliding_attention\",\"full_attention\","
                "\"full_attention\",\"full_attention\"]",
        DPQ_E_INPUT, "layer_types[0]");
    /* the class default of 8 does not divide 4 heads */
    bad(state, "\"architectures\":[\"MistralForCausalLM\"]," SIZES, DPQ_E_INPUT, "num_key_value_heads");
}

static void test_qwen2(void **state)
{
    dpq_model_config c = good(state, QWEN2 ",\"sliding_window\":64,\"max_window_layers\":0");
    assert_true(c.qkv_bias);
    assert_false(c.o_bias || c.mlp_bias || c.qk_norm);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.window[0], 0); /* use_sliding_window is off */
    dpq_model_config_fini(&c);
    c = good(state, QWEN2 ",\"use_sliding_window\":true,\"max_window_layers\":3");
    assert_int_equal(c.window[2], 0);
    assert_int_equal(c.window[3], 4096);
    dpq_model_config_fini(&c);
    c = good(state, QWEN2 ",\"use_sliding_window\":true"); /* 28 full layers by default */
    assert_int_equal(c.window[3], 0);
    dpq_model_config_fini(&c);
    c = good(state, QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":null,\"max_window_layers\":0");
    assert_int_equal(c.window[3], 0);
    dpq_model_config_fini(&c);
    c = good(state, QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":8,\"max_window_layers\":0,\"layer_types\":["
                          "\"full_attention\",\"sliding_attention\",\"full_attention\",\"sliding_attention\"]");
    assert_int_equal(c.window[0], 0);
    assert_int_equal(c.window[1], 8);
    dpq_model_config_fini(&c);
    bad(state, QWEN2 ",\"use_sliding_window\":true,\"max_window_layers\":-1", DPQ_E_INPUT, "max_window_layers");
    bad(state, QWEN2 ",\"layer_types\":[\"full_attention\"]", DPQ_E_INPUT, "layer_types");
    bad(state, QWEN2 ",\"layer_types\":[\"full_attention\",\"linear_attention\",\"full_attention\",\"full_attention\"]",
        DPQ_E_UNSUPPORTED, "linear_attention");
    bad(state, QWEN2 ",\"layer_types\":[1,2,3,4]", DPQ_E_INPUT, "layer_types[0]");
    bad(state, QWEN2 ",\"layer_types\":7", DPQ_E_INPUT, "layer_types");
    /* 32 key/value heads by default, and 4 heads here */
    bad(state, "\"architectures\":[\"Qwen2ForCausalLM\"]," SIZES, DPQ_E_INPUT, "num_key_value_heads");
}

static void test_qwen3(void **state)
{
    dpq_model_config c = good(state, QWEN3);
    assert_int_equal(c.head_dim, 128);
    assert_true(c.qk_norm);
    assert_false(c.qkv_bias || c.o_bias || c.mlp_bias);
    assert_int_equal(dpq_model_norm_size(&c, DPQ_NORM_Q), 128);
    assert_true(dpq_model_has_norm(&c, DPQ_NORM_K));
    dpq_model_config_fini(&c);
    c = good(state, QWEN3 ",\"head_dim\":32,\"attention_bias\":true,\"mlp_bias\":true,\"tie_word_embeddings\":true");
    assert_int_equal(c.head_dim, 32);
    assert_true(c.qkv_bias && c.o_bias && c.tied_embeddings);
    assert_false(c.mlp_bias); /* no such key in this class */
    dpq_model_config_fini(&c);
}

static void test_refusals(void **state)
{
    bad(state, "\"architectures\":[\"GPT2LMHeadModel\"]," SIZES, DPQ_E_UNSUPPORTED, "GPT2LMHeadModel");
    bad(state, "\"model_type\":\"mamba\"," SIZES, DPQ_E_UNSUPPORTED, "mamba");
    bad(state, SIZES, DPQ_E_INPUT, "architectures");
    bad(state, "\"architectures\":\"LlamaForCausalLM\"," SIZES, DPQ_E_INPUT, "architectures");
    bad(state, "\"architectures\":[]," SIZES, DPQ_E_INPUT, "architectures");
    bad(state, LLAMA ",\"model_type\":\"mistral\"", DPQ_E_INPUT, "model_type");
    bad(state, "\"text_config\":{}," LLAMA, DPQ_E_UNSUPPORTED, "text_config");
    bad(state, LLAMA ",\"hidden_act\":\"gelu\"", DPQ_E_UNSUPPORTED, "gelu");
    bad(state, LLAMA ",\"torch_dtype\":\"float64\"", DPQ_E_UNSUPPORTED, "float64");
    bad(state, LLAMA ",\"rms_norm_eps\":0", DPQ_E_INPUT, "rms_norm_eps");
    bad(state, LLAMA ",\"rms_norm_eps\":\"1e-6\"", DPQ_E_INPUT, "rms_norm_eps");
    bad(state, LLAMA ",\"num_key_value_heads\":3", DPQ_E_INPUT, "num_key_value_heads");
    bad(state, LLAMA ",\"num_key_value_heads\":0", DPQ_E_INPUT, "num_key_value_heads");
    bad(state, LLAMA ",\"num_key_value_heads\":8", DPQ_E_INPUT, "num_key_value_heads");
    bad(state, LLAMA ",\"head_dim\":-16", DPQ_E_INPUT, "head_dim");
    bad(state, LLAMA ",\"head_dim\":15", DPQ_E_UNSUPPORTED, "head_dim");
    bad(state, LLAMA ",\"head_dim\":1073741824", DPQ_E_INPUT, "head_dim");
    bad(state, LLAMA ",\"attention_bias\":1", DPQ_E_INPUT, "attention_bias");
    bad(state,
        LLAMA ",\"layer_types\":[\"sliding_attention\",\"full_attention\",\"full_attention\",\"full_attention\"]",
        DPQ_E_INPUT, "layer_types[0]");
    bad(state, "\"architectures\":[\"LlamaForCausalLM\"]," SIZES_BUT_HEADS, DPQ_E_INPUT, "num_attention_heads");
    bad(state, "\"architectures\":[\"LlamaForCausalLM\"]," SIZES_BUT_HEADS ",\"num_attention_heads\":7", DPQ_E_INPUT,
        "hidden_size");
    bad(state, "\"architectures\":[\"LlamaForCausalLM\"]," SIZES_BUT_HEADS ",\"num_attention_heads\":4.5", DPQ_E_INPUT,
        "num_attention_heads");
    bad(state, "\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":99999999999," SIZES, DPQ_E_INPUT,
        "hidden_size");
    put_file(in_folder(state, "config.json"), "[1]", 3);
    dpq_model_config c;
    bool quantized = false;
    expect_error(dpq_model_config_read(*state, &c, &quantized), DPQ_E_INPUT, "object");
    expect_error(dpq_model_config_read("/nonexistent", &c, &quantized), DPQ_E_INPUT, "/nonexistent/config.json");
}

static void test_needed_keys(void **state)
{
    static const char *const keys[] = {"hidden_size",         "intermediate_size", "num_hidden_layers",
                                       "num_attention_heads", "vocab_size",        "max_position_embeddings"};
    for (size_t missing = 0; missing < sizeof keys / sizeof keys[0]; missing++) {
        char members[1024] = "\"architectures\":[\"LlamaForCausalLM\"]";
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
            size_t used = strlen(members);
            if (i != missing) {
                snprintf(members + used, sizeof members - used, ",\"%s\":64", keys[i]);
            }
        }
        bad(state, members, DPQ_E_INPUT, keys[missing]);
        size_t used = strlen(members);
        snprintf(members + used, sizeof members - used, ",\"%s\":0", keys[missing]);
        bad(state, members, DPQ_E_INPUT, keys[missing]);
    }
}

static void test_quantized(void **state)
{
    static const char *const members[] = {LLAMA ",\"quantization_config\":{\"quant_method\":\"gptq\"}",
                                          LLAMA ",\"compression_config\":{}", LLAMA ",\"quantization_config\":null"};
    for (int i = 0; i < 3; i++) {
        dpq_model_config c;
        bool quantized = false;
        expect_ok(read_members(state, members[i], &c, &quantized));
        assert_int_equal(quantized, i < 2);
        dpq_model_config_fini(&c);
    }
}

static void test_rope_spellings(void **state)
{
#define LLAMA3                                                                                                         \
    "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192"
    static const char *const members[] = {
        LLAMA ",\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\"," LLAMA3 "}",
        LLAMA ",\"rope_theta\":500000,\"rope_scaling\":{\"type\":\"llama3\"," LLAMA3 "}",
        LLAMA ",\"rope_parameters\":{\"rope_theta\":500000.0,\"rope_type\":\"llama3\"," LLAMA3 "}",
        LLAMA ",\"rope_theta\":500000.0,\"rope_scaling\":{\"type\":\"llama3\"," LLAMA3
              "},\"rope_parameters\":{\"rope_type\":\"llama3\"," LLAMA3 "}",
    };
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        dpq_model_config c = good(state, members[i]);
        assert_int_equal(c.rope.type, DPQ_ROPE_LLAMA3);
        assert_true(c.rope.theta == 500000.0 && c.rope.factor == 8.0 && c.rope.low_freq_factor == 1.0);
        assert_true(c.rope.high_freq_factor == 4.0 && c.rope.original_max_position == 8192.0);
        assert_true(c.rope.attention_factor == 1.0);
        dpq_model_config_fini(&c);
    }
    dpq_model_config c =
        good(state, LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},\"partial_rotary_factor\":0.5");
    assert_int_equal(c.rope.type, DPQ_ROPE_LINEAR);
    assert_true(c.rope.factor == 2.0);
    assert_int_equal(c.rope.rotary_dim, 8);
    dpq_model_config_fini(&c);
    c = good(state, LLAMA ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1000000}");
    assert_int_equal(c.rope.type, DPQ_ROPE_DEFAULT);
    assert_true(c.rope.theta == 1e6);
    dpq_model_config_fini(&c);
}

static void test_rope_yarn(void **state)
{
    dpq_model_config c = good(state, QWEN2 ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,"
                                           "\"original_max_position_embeddings\":512}");
    assert_int_equal(c.rope.type, DPQ_ROPE_YARN);
    assert_true(c.rope.beta_fast == 32.0 && c.rope.beta_slow == 1.0 && c.rope.truncate);
    assert_float_equal(c.rope.attention_factor, 1.138629436111989, 1e-12); /* 0.1 ln 4 + 1 */
    dpq_model_config_fini(&c);
    c = good(state, QWEN2 ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":null,\"mscale\":1.0,\"mscale_all_dim\":1.0,"
                          "\"truncate\":false,\"beta_fast\":16,\"original_max_position_embeddings\":512}");
    assert_true(c.rope.factor == 4.0 && c.rope.attention_factor == 1.0 && !c.rope.truncate && c.rope.beta_fast == 16.0);
    dpq_model_config_fini(&c);
    c = good(state, QWEN2 ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"attention_factor\":1.5,"
                          "\"original_max_position_embeddings\":512}");
    assert_true(c.rope.attention_factor == 1.5);
    dpq_model_config_fini(&c);
    c = good(state, QWEN2 ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"mscale\":1.0,\"mscale_all_dim\":0.5,"
                          "\"original_max_position_embeddings\":512}");
    assert_float_equal(c.rope.attention_factor, 1.138629436111989 / 1.0693147180559945, 1e-12);
    dpq_model_config_fini(&c);
    c = good(state,
             QWEN2 ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"mscale\":0.5," /* alone it says nothing */
                   "\"original_max_position_embeddings\":512}");
    assert_float_equal(c.rope.attention_factor, 1.138629436111989, 1e-12);
    dpq_model_config_fini(&c);
    bad(state, QWEN2 ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}", DPQ_E_INPUT,
        "original_max_position_embeddings");
    bad(state, QWEN2 ",\"rope_scaling\":{\"type\":\"yarn\",\"original_max_position_embeddings\":4096}", DPQ_E_INPUT,
        "original_max_position_embeddings");
}

static void test_rope_refusals(void **state)
{
    static const char *const types[] = {"dynamic", "longrope", "su", "mrope", "proportional", "ntk"};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        char members[1024];
        snprintf(members, sizeof members, LLAMA ",\"rope_scaling\":{\"rope_type\":\"%s\",\"factor\":2.0}", types[i]);
        bad(state, members, DPQ_E_UNSUPPORTED, types[i]);
    }
    bad(state, LLAMA ",\"rope_scaling\":{\"rope_type\":\"default\",\"mrope_section\":[1,2]}", DPQ_E_UNSUPPORTED,
        "mrope_section");
    bad(state, LLAMA ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}", DPQ_E_UNSUPPORTED,
        "full_attention");
    bad(state, LLAMA ",\"rope_scaling\":{\"factor\":2.0}", DPQ_E_INPUT, "rope_type");
    bad(state, LLAMA ",\"rope_scaling\":{\"type\":\"linear\"}", DPQ_E_INPUT, "factor");
    bad(state, LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0.5}", DPQ_E_INPUT, "factor");
    bad(state, LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":\"2\"}", DPQ_E_INPUT, "factor");
    bad(state, LLAMA ",\"rope_scaling\":\"linear\"", DPQ_E_INPUT, "rope_scaling");
    bad(state,
        LLAMA ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":1}",
        DPQ_E_INPUT, "high_freq_factor");
    bad(state, LLAMA ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"high_freq_factor\":1}", DPQ_E_INPUT,
        "low_freq_factor");
    bad(state, LLAMA ",\"rope_theta\":0", DPQ_E_INPUT, "rope_theta");
    bad(state, LLAMA ",\"partial_rotary_factor\":1.5", DPQ_E_INPUT, "partial_rotary_factor");
    bad(state, LLAMA ",\"partial_rotary_factor\":0.2", DPQ_E_UNSUPPORTED, "partial_rotary_factor");
    bad(state,
        LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},\"rope_parameters\":{\"rope_type\":\"default\"}",
        DPQ_E_INPUT, "rope_scaling");
}

static void test_names(void **state)
{
    dpq_model_config c = good(state, LLAMA ",\"num_key_value_heads\":2,\"head_dim\":20");
    static const char *const names[DPQ_LINEAR_COUNT] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                                        "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
                                                        "mlp.down_proj"};
    static const int64_t shape[DPQ_LINEAR_COUNT][2] = {{80, 64}, {40, 64}, {40, 64}, {64, 80},
                                                       {96, 64}, {96, 64}, {64, 96}};
    static const int stage[DPQ_LINEAR_COUNT] = {0, 0, 0, 1, 2, 2, 3};
    int seen = 0;
    for (int s = 0; s < DPQ_STAGE_COUNT; s++) {
        dpq_linear_role roles[3];
        int count = dpq_model_stage_linears(s, roles);
        for (int i = 0; i < count; i++, seen++) {
            assert_int_equal(roles[i], seen);
            assert_int_equal(stage[seen], s);
            char name[DPQ_NAME_BYTES];
            char expected[DPQ_NAME_BYTES];
            int64_t n = 0;
            int64_t k = 0;
            dpq_model_linear_shape(&c, roles[i], &n, &k);
            assert_int_equal(n, shape[seen][0]);
            assert_int_equal(k, shape[seen][1]);
            assert_int_equal(k, dpq_model_stage_inputs(&c, s));
            assert_int_equal(dpq_model_linear_stage(roles[i]), s);
            dpq_model_linear_name(&c, 12, roles[i], name);
            snprintf(expected, sizeof expected, "model.layers.12.%s", names[seen]);
            assert_string_equal(name, expected);
            assert_string_equal(strrchr(name, '.') + 1, dpq_linear_role_name(roles[i]));
        }
    }
    assert_int_equal(seen, DPQ_LINEAR_COUNT);
    char name[DPQ_NAME_BYTES];
    dpq_model_norm_name(&c, 0, DPQ_NORM_POST, name);
    assert_string_equal(name, "model.layers.0.post_attention_layernorm.weight");
    dpq_model_norm_name(&c, 0, DPQ_NORM_K, name);
    assert_string_equal(name, "model.layers.0.self_attn.k_norm.weight");
    assert_false(dpq_model_has_norm(&c, DPQ_NORM_Q));
    assert_string_equal(dpq_model_head_name(&c), "lm_head.weight");
    c.tied_embeddings = true;
    assert_string_equal(dpq_model_head_name(&c), dpq_model_embed_name(&c));
    c.o_bias = true;
    assert_true(dpq_model_linear_has_bias(&c, DPQ_LINEAR_O));
    assert_false(dpq_model_linear_has_bias(&c, DPQ_LINEAR_Q) || dpq_model_linear_has_bias(&c, DPQ_LINEAR_DOWN));
    dpq_model_config_fini(&c);
    assert_non_null(dpq_arch_at(0));
    assert_null(dpq_arch_at(-1));
    assert_null(dpq_arch_at(4));
}

static void test_check_tensors(void **state)
{
    (void)state;
    dpq_model_config c;
    bool quantized = false;
    dpq_st_store *store = NULL;
    expect_ok(dpq_model_config_read(TINY, &c, &quantized));
    expect_ok(dpq_st_open(TINY, &store));
    expect_ok(dpq_model_check_tensors(&c, store, true));
    expect_ok(dpq_model_check_tensors(&c, store, false));
    c.n_layers = 5;
    expect_error(dpq_model_check_tensors(&c, store, true), DPQ_E_INPUT, "model.layers.4.input_layernorm.weight");
    c.n_layers = 4;
    c.vocab_size = 2049;
    expect_error(dpq_model_check_tensors(&c, store, true), DPQ_E_INPUT,
                 "expected shape [2049,256] from config.json, found [2048,256]");
    c.vocab_size = 2048;
    c.n_kv_heads = 8;
    expect_error(dpq_model_check_tensors(&c, store, true), DPQ_E_INPUT, "self_attn.k_proj.weight");
    expect_ok(dpq_model_check_tensors(&c, store, false));
    c.n_kv_heads = 4;
    c.o_bias = true;
    expect_error(dpq_model_check_tensors(&c, store, false), DPQ_E_INPUT, "model.layers.0.self_attn.o_proj.bias");
    c.o_bias = false;
    c.qk_norm = true;
    expect_error(dpq_model_check_tensors(&c, store, false), DPQ_E_INPUT, "self_attn.q_norm.weight");
    c.qk_norm = false;
    c.tied_embeddings = false;
    expect_error(dpq_model_check_tensors(&c, store, true), DPQ_E_INPUT, "lm_head.weight");
    dpq_st_close(&store);
    dpq_model_config_fini(&c);
}

/* A checkpoint with one tensor that config.json does not promise, or of a wrong type. */
static void test_check_odd_tensors(void **state)
{
    dpq_model_config c =
        good(state, "\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":4,\"intermediate_size\":4,"
                    "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"vocab_size\":4,"
                    "\"max_position_embeddings\":8,\"tie_word_embeddings\":true");
    static const float zeros[16];
    for (int odd = 0; odd < 3; odd++) {
        dpq_st_decl decls[16];
        char names[16][DPQ_NAME_BYTES + 8];
        size_t n = 0;
        for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
            char module[DPQ_NAME_BYTES];
            dpq_model_linear_name(&c, 0, (dpq_linear_role)role, module);
            snprintf(names[n++], sizeof names[0], "%s.weight", module);
        }
        snprintf(names[n++], sizeof names[0], "%s", dpq_model_embed_name(&c));
        size_t matrices = n;
        snprintf(names[n++], sizeof names[0], "%s", dpq_model_final_norm_name(&c));
        dpq_model_norm_name(&c, 0, DPQ_NORM_INPUT, names[n++]);
        dpq_model_norm_name(&c, 0, DPQ_NORM_POST, names[n++]);
        if (odd == 1) {
            snprintf(names[n++], sizeof names[0], "model.layers.0.mlp.up_proj.bias");
        }
        for (size_t i = 0; i < n; i++) {
            decls[i] =
                (dpq_st_decl){.name = names[i], .dtype = DPQ_DTYPE_F32, .rank = i < matrices ? 2 : 1, .dim = {4, 4}};
            if (i >= matrices) {
                decls[i].dim[1] = 0;
            }
        }
        if (odd == 2) {
            decls[0].dtype = DPQ_DTYPE_I32;
        }
        dpq_st_writer *writer = NULL;
        dpq_st_store *store = NULL;
        expect_ok(dpq_st_writer_create(*state, decls, n, 1 << 20, &writer));
        for (size_t i = 0; i < n; i++) {
            expect_ok(dpq_st_writer_put(writer, names[i], zeros, i < matrices ? 64 : 16));
        }
        expect_ok(dpq_st_writer_finish(&writer));
        expect_ok(dpq_st_open(*state, &store));
        dpq_status st = dpq_model_check_tensors(&c, store, true);
        if (odd == 0) {
            expect_ok(st);
        } else {
            expect_error(st, DPQ_E_INPUT, odd == 1 ? "mlp.up_proj.bias: expected none" : "found I32");
            expect_ok(dpq_model_check_tensors(&c, store, false));
        }
        dpq_st_close(&store);
        assert_int_equal(unlink(in_folder(state, "model.safetensors")), 0);
    }
    dpq_model_config_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny),
        folder_test(test_llama_defaults),
        folder_test(test_mistral),
        folder_test(test_qwen2),
        folder_test(test_qwen3),
        folder_test(test_refusals),
        folder_test(test_needed_keys),
        folder_test(test_quantized),
        folder_test(test_rope_spellings),
        folder_test(test_rope_yarn),
        folder_test(test_rope_refusals),
        folder_test(test_names),
        cmocka_unit_test(test_check_tensors),
        folder_test(test_check_odd_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
