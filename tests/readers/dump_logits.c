/* SPDX-License-Identifier: Apache-2.0 */
/* dump_logits MODEL DATA.h5 OUT [bf16]: logits (samples, tokens, vocabulary) of all windows as raw little-endian
 * floats, for comparison with another program's. Built by tests/readers/run.sh; one rank. */
#include <stdio.h>
#include <string.h>

#include "../../src/eval/eval_priv.h"
#include "dpquant/token_data.h"

static dpq_status write_windows(dpq_eval_context *ctx, dpq_eval_model *model, FILE *out)
{
    dpq_status st = DPQ_OK;
    dpq_tensor logits = {0};
    for (int64_t s = 0; s < ctx->set->n; s++) {
        int64_t tokens = ctx->set->start[s + 1] - ctx->set->start[s];
        DPQ_TRY_GOTO(st, dpq_tensor_create_2d(DPQ_DTYPE_F32, tokens, model->folder.config.vocab_size, &logits), done);
        DPQ_TRY_GOTO(st, dpq_eval_logits(ctx, model, s, 0, tokens, &logits), done);
        size_t n = (size_t)dpq_tensor_count(&logits);
        if (fwrite(logits.data, sizeof(float), n, out) != n) {
            st = DPQ_RAISE(DPQ_E_DISK, "the logits cannot be written");
            goto done;
        }
        dpq_tensor_fini(&logits);
    }
done:
    dpq_tensor_fini(&logits);
    return st;
}

static dpq_status dump(dpq_comm *comm, dpq_backend *backend, char **argv, bool bf16)
{
    dpq_status st = DPQ_OK;
    dpq_spans spans = {0};
    dpq_calibset set = {0};
    dpq_eval_model model = {0};
    dpq_calibset_options data = {.data = argv[2]};
    FILE *out = NULL;
    DPQ_TRY_GOTO(st, dpq_model_folder_open(argv[1], true, &model.folder), done);
    DPQ_TRY_GOTO(st, dpq_token_data_read(comm, &data, model.folder.config.vocab_size, &set), done);
    dpq_eval_context ctx = {.comm = comm,
                            .be = backend,
                            .spans = &spans,
                            .set = &set,
                            .act = bf16 ? DPQ_DTYPE_BF16 : DPQ_DTYPE_F32,
                            .compute = DPQ_COMPUTE_F32,
                            .total = model.folder.config.n_layers + 1};
    DPQ_TRY_GOTO(st, dpq_eval_model_run(&ctx, &model), done);
    DPQ_TRY_GOTO(st, dpq_eval_model_read_head(&ctx, &model), done);
    out = fopen(argv[3], "wb");
    if (out == NULL) {
        st = DPQ_RAISE(DPQ_E_DISK, "%s: cannot be opened for writing", argv[3]);
        goto done;
    }
    st = write_windows(&ctx, &model, out);
    if (fclose(out) != 0 && st == DPQ_OK) {
        st = DPQ_RAISE(DPQ_E_DISK, "%s: cannot be written", argv[3]);
    }
done:
    dpq_eval_model_fini(&model);
    dpq_calibset_fini(&set);
    return st;
}

int main(int argc, char **argv)
{
    dpq_comm *comm = NULL;
    dpq_backend *backend = NULL;
    bool bf16 = argc == 5 && strcmp(argv[4], "bf16") == 0;
    if (argc < 4 || argc > 5 || (argc == 5 && !bf16)) {
        fprintf(stderr, "usage: dump_logits MODEL DATA.h5 OUT [bf16]\n");
        return 2;
    }
    dpq_status st = dpq_comm_open(NULL, NULL, &comm);
    if (st == DPQ_OK) {
        st = dpq_backend_create("cpu", 0, &backend);
    }
    if (st == DPQ_OK) {
        st = dump(comm, backend, argv, bf16);
    }
    if (st != DPQ_OK) {
        fprintf(stderr, "dump_logits: %s\n", dpq_error_last()->text);
    }
    dpq_backend_destroy(&backend);
    dpq_comm_close(&comm);
    return dpq_status_exit_code(st);
}
