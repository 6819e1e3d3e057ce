/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of ranks: subsets with their own collectives, ranks that rest meanwhile, ranks that have something in common.
 * Run under mpirun with 1 to 4 ranks; a failed check on any rank makes all return 1. */
#include <stdio.h>
#include <time.h>

#include "dpquant/comm.h"

static long n_failed;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "test_comm_groups: line %d: %s\n", __LINE__, #condition);                                  \
            n_failed++;                                                                                                \
        }                                                                                                              \
    } while (0)

static void must(dpq_comm *comm, dpq_status st)
{
    if (st != DPQ_OK) {
        dpq_comm_abort(comm, st);
    }
}

/* Members: the ranks for which rank % step == 0, or all but the last. */
static void test_subset(dpq_comm *comm, bool member, int members, int my_place)
{
    dpq_comm *part = NULL;
    must(comm, dpq_comm_subset(comm, member, &part));
    CHECK((part != NULL) == member);
    if (part != NULL) {
        int64_t value = dpq_comm_rank(comm) + 1, count = 1;
        dpq_tensor t = dpq_tensor_wrap_1d(&value, DPQ_DTYPE_I64, 1), c = dpq_tensor_wrap_1d(&count, DPQ_DTYPE_I64, 1);
        CHECK(dpq_comm_size(part) == members);
        CHECK(dpq_comm_rank(part) == my_place);
        CHECK(dpq_comm_local_rank(part) == my_place && dpq_comm_local_size(part) == members);
        must(part, dpq_comm_allreduce(part, &c, DPQ_REDUCE_SUM));
        must(part, dpq_comm_broadcast(part, &t, 0));
        CHECK(count == members);
        CHECK(value == 1); /* rank 0 of all is the first member in every case here */
        must(part, dpq_comm_agree(part, DPQ_OK, NULL));
    }
    must(comm, dpq_comm_rest(comm));
    dpq_comm_close(&part);
    CHECK(part == NULL);
    must(comm, dpq_comm_barrier(comm)); /* the parent still works */
}

/* Nobody leaves before the last has come. */
static void test_rest(dpq_comm *comm)
{
    const struct timespec nap = {.tv_nsec = 200000000};
    double start = dpq_clock_s();
    must(comm, dpq_comm_barrier(comm));
    if (dpq_comm_rank(comm) == dpq_comm_size(comm) - 1) {
        nanosleep(&nap, NULL);
    }
    must(comm, dpq_comm_rest(comm));
    CHECK(dpq_clock_s() - start >= 0.19);
}

static void test_count_equal(dpq_comm *comm)
{
    int size = dpq_comm_size(comm), rank = dpq_comm_rank(comm), count = 0;
    must(comm, dpq_comm_count_equal(comm, 77, &count));
    CHECK(count == size);
    must(comm, dpq_comm_count_equal(comm, (uint64_t)rank, &count));
    CHECK(count == 1);
    must(comm, dpq_comm_count_equal(comm, (uint64_t)(rank % 2) << 40, &count));
    CHECK(count == (rank % 2 == 0 ? (size + 1) / 2 : size / 2));
}

int main(int argc, char **argv)
{
    dpq_comm *comm = NULL;
    if (dpq_comm_open(&argc, &argv, &comm) != DPQ_OK) {
        fprintf(stderr, "test_comm_groups: %s\n", dpq_error_last()->text);
        return 1;
    }
    int size = dpq_comm_size(comm), rank = dpq_comm_rank(comm);
    test_subset(comm, true, size, rank);
    test_subset(comm, rank % 2 == 0, (size + 1) / 2, rank / 2);
    test_subset(comm, rank == 0, 1, 0);
    test_rest(comm);
    test_count_equal(comm);
    dpq_tensor t = dpq_tensor_wrap_1d(&n_failed, DPQ_DTYPE_I64, 1);
    must(comm, dpq_comm_allreduce(comm, &t, DPQ_REDUCE_SUM));
    if (rank == 0 && n_failed == 0) {
        printf("test_comm_groups: %d rank%s ok\n", size, size == 1 ? "" : "s");
    }
    dpq_comm_close(&comm);
    return n_failed == 0 ? 0 : 1;
}
