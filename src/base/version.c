/* SPDX-License-Identifier: Apache-2.0 */
/* Version and build, from the header the Makefile generates. */
#include "dpquant/version.h"

#include "version.h"

const char *dpq_version(void)
{
    return DPQ_VERSION;
}

const char *dpq_build(void)
{
    return DPQ_GIT_COMMIT;
}

const char *dpq_compiler(void)
{
    return DPQ_COMPILER " " DPQ_COMPILER_FLAGS;
}
