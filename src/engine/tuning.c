/* SPDX-License-Identifier: Apache-2.0 */
/* What lives through all blocks of a tuning run: the two chains of activations and the buffers of a step. */
#include <string.h>

#include "dpquant/file.h"
#include "tuning_priv.h"

/* Room for both chains: heap, or a scratch file that the system may page out. */
static dpq_status create_arena(dpq_tuning *t, const dpq_run *run, int64_t tokens)
{
    size_t per_chain;
    DPQ_TRY(
        dpq_mul_size((size_t)(tokens * run->folder->config.hidden_size), dpq_dtype_bytes(run->plan->act), &per_chain));
    DPQ_TRY(dpq_mul_size(per_chain, 2, &t->arena_bytes));
    t->mapped = run->settings->run.run.low_memory;
    if (t->mapped) {
        return dpq_file_map_scratch(run->settings->run.run.scratch, t->arena_bytes, &t->arena);
    }
    return dpq_alloc(t->arena_bytes, &t->arena);
}

static dpq_status create_chains(dpq_tuning *t, const dpq_run *run)
{
    const dpq_calibset *set = run->samples;
    int rank = dpq_comm_rank(run->comm), size = dpq_comm_size(run->comm);
    int64_t width = run->folder->config.hidden_size, tokens = 0;
    dpq_tensor table = {0};
    dpq_status st = DPQ_OK;
    void *memory;
    t->n = dpq_shard_sample_count(set->n, rank, size);
    DPQ_TRY(dpq_alloc_array(t->n, sizeof *t->target, &memory));
    t->target = memory;
    DPQ_TRY(dpq_alloc_array(t->n, sizeof *t->input, &memory));
    t->input = memory;
    for (int64_t i = 0; i < t->n; i++) {
        int64_t s = dpq_shard_sample(i, rank, size);
        tokens += set->start[s + 1] - set->start[s];
    }
    DPQ_TRY(create_arena(t, run, tokens));
    char *next = t->arena;
    DPQ_TRY_GOTO(st, dpq_folder_read_tensor(run->folder, dpq_model_embed_name(&run->folder->config), &table), done);
    for (int64_t i = 0; i < t->n; i++) {
        int64_t s = dpq_shard_sample(i, rank, size), rows = set->start[s + 1] - set->start[s];
        t->target[i] = dpq_tensor_wrap_2d(next, run->plan->act, rows, width);
        next += dpq_tensor_bytes(&t->target[i]);
        t->input[i] = dpq_tensor_wrap_2d(next, run->plan->act, rows, width);
        next += dpq_tensor_bytes(&t->input[i]);
        DPQ_TRY_GOTO(st, dpq_op_gather_rows(run->backend, &table, set->ids + set->start[s], &t->target[i]), done);
        memcpy(t->input[i].data, t->target[i].data, dpq_tensor_bytes(&t->target[i]));
    }
done:
    dpq_tensor_fini(&table);
    return st;
}

static dpq_status create_gradients(dpq_tuning *t, const dpq_run *run)
{
    int64_t n[DPQ_LINEAR_COUNT], k[DPQ_LINEAR_COUNT];
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        bool tuned = false;
        for (int64_t layer = 0; layer < run->folder->config.n_layers; layer++) {
            tuned = tuned || dpq_plan_work(run->plan, layer, (dpq_linear_role)role)->quantized;
        }
        dpq_model_linear_shape(&run->folder->config, (dpq_linear_role)role, &n[role], &k[role]);
        n[role] = tuned ? n[role] : 0;
    }
    return dpq_gradient_sum_create(n, k, t->batch, (dpq_transport)run->settings->run.run.gradient_transport,
                                   &t->gradients);
}

dpq_status dpq_tuning_create(dpq_run *run, dpq_tuning **out)
{
    const dpq_tune_options *options = &run->settings->tune;
    int64_t longest = run->samples->max_length, width = run->folder->config.hidden_size;
    int64_t micro = options->batch < run->samples->n ? options->batch : run->samples->n;
    dpq_status st = DPQ_OK;
    void *memory;
    *out = NULL;
    DPQ_TRY(dpq_alloc(sizeof(dpq_tuning), &memory));
    dpq_tuning *t = memory;
    t->batch = micro * options->accumulate;
    DPQ_TRY_GOTO(st, dpq_alloc_array(t->batch, sizeof *t->samples, &memory), fail);
    t->samples = memory;
    DPQ_TRY_GOTO(
        st, dpq_alloc_array(t->batch > run->samples->n ? t->batch : run->samples->n, sizeof *t->losses, &memory), fail);
    t->losses = memory;
    DPQ_TRY_GOTO(st, create_chains(t, run), fail);
    DPQ_TRY_GOTO(st, dpq_block_tape_create(&run->folder->config, run->plan->act, longest, &t->tape), fail);
    DPQ_TRY_GOTO(st, dpq_tensor_create_2d(run->plan->act, longest, width, &t->y), fail);
    DPQ_TRY_GOTO(st, dpq_tensor_create_2d(run->plan->act, longest, width, &t->dy), fail);
    DPQ_TRY_GOTO(st, create_gradients(t, run), fail);
    *out = t;
    return DPQ_OK;
fail:
    dpq_tuning_destroy(&t);
    return st;
}

void dpq_tuning_destroy(dpq_tuning **tuning)
{
    dpq_tuning *t = *tuning;
    if (t == NULL) {
        return;
    }
    if (t->mapped) {
        dpq_file_unmap_scratch(t->arena, t->arena_bytes);
    } else {
        dpq_free(t->arena);
    }
    dpq_free(t->target);
    dpq_free(t->input);
    dpq_block_tape_fini(&t->tape);
    dpq_tensor_fini(&t->y);
    dpq_tensor_fini(&t->dy);
    dpq_gradient_sum_destroy(&t->gradients);
    dpq_free(t->samples);
    dpq_free(t->losses);
    dpq_free(t);
    *tuning = NULL;
}
