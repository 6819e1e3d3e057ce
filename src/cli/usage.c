/* SPDX-License-Identifier: Apache-2.0 */
/* The help text of the program. */
#include "cli_priv.h"

const char *dpq_usage_text(void)
{
    return "dpquant quantizes a language model, spread over the ranks of an MPI job; the output is the same for any "
           "number of ranks.\n"
           "\n"
           "usage:\n"
           "  [mpirun -np N] dpquant --config RECIPE.yaml [options]   quantize a model as a recipe says\n"
           "  [mpirun -np N] dpquant eval --model DIR --data FILE.h5  perplexity, and KL divergence with --reference "
           "DIR\n"
           "  dpquant inspect DIR                                     what a model or an output folder holds\n"
           "  dpquant list [schemes|algorithms|formats|architectures|config]\n"
           "\n"
           "options:\n"
           "  -c, --config FILE     recipe (YAML); docs/CONFIG.md and 'dpquant list config' name every key\n"
           "  -s, --set KEY=VALUE   set one key of the recipe, e.g. quantize.bits=3; later settings of a key win\n"
           "  -m, --model DIR       the model: same as --set model=DIR\n"
           "  -o, --output DIR      the folder to write: same as --set output=DIR\n"
           "      --overwrite       replace an output folder that dpquant wrote\n"
           "      --plan            check everything, print work, memory, bytes and an estimate of time, and stop\n"
           "  -h, --help            this text\n"
           "  -V, --version         version, build, libraries, instruction set\n"
           "\n"
           "exit codes: 0 done, 1 other failure, 2 usage or recipe, 3 bad input, 4 no memory or disk, 5 communication "
           "or device,\n"
           "            6 numeric (non-finite values, too many fallbacks), 70 internal error\n";
}
