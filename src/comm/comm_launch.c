/* SPDX-License-Identifier: Apache-2.0 */
/* Was this process started by an MPI launcher, and with how many ranks? Read from the environment, before any MPI call.
 */
#include <stdlib.h>
#include <string.h>

#include "comm_priv.h"
#include "dpquant/str.h"

/* Slurm numbers the steps of batch scripts, interactive shells and the like from here up: no tasks of srun. */
#define SLURM_FIRST_PSEUDO_STEP INT64_C(0xfffffff0)

static const char *get_variable(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* Value of the first of NAMES that is a positive number. */
static void read_tasks(dpq_comm_launch *launch, const char *const *names, size_t n_names)
{
    for (size_t i = 0; i < n_names && launch->variable == NULL; i++) {
        const char *value = get_variable(names[i]);
        int64_t tasks = 0;
        if (value != NULL && dpq_parse_int64(value, &tasks) && tasks > 0) {
            launch->tasks = tasks;
            launch->variable = names[i];
        }
    }
}

static bool is_slurm_task(void)
{
    const char *step = get_variable("SLURM_STEP_ID");
    if (step == NULL) {
        step = get_variable("SLURM_STEPID");
    }
    int64_t step_id = 0;
    if (get_variable("SLURM_PROCID") == NULL || step == NULL) {
        return false;
    }
    return dpq_parse_int64(step, &step_id) && step_id >= 0 && step_id < SLURM_FIRST_PSEUDO_STEP;
}

dpq_comm_launch dpq_comm_launch_read(void)
{
    static const char *const ompi_names[] = {"OMPI_COMM_WORLD_SIZE"};
    static const char *const pmi_names[] = {"PMI_SIZE"};
    /* the step's own count first: a job of four tasks may run a step of one */
    static const char *const slurm_names[] = {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"};
    dpq_comm_launch launch = {0};

    if (get_variable("OMPI_COMM_WORLD_SIZE") != NULL) {
        /* mpirun inside a Slurm job starts its daemons as a step, whose count says nothing about our ranks */
        launch.launched = true;
        read_tasks(&launch, ompi_names, 1);
        return launch;
    }
    bool slurm = is_slurm_task();
    if (get_variable("PMI_RANK") != NULL || get_variable("PMIX_RANK") != NULL) {
        launch.launched = true;
        read_tasks(&launch, pmi_names, 1);
        if (slurm) {
            read_tasks(&launch, slurm_names, 2);
        }
        return launch;
    }
    if (slurm) {
        /* a step of one task needs no MPI, and may run where MPI cannot start (srun without a PMI plug-in) */
        read_tasks(&launch, slurm_names, 2);
        launch.launched = launch.tasks != 1;
        launch.without_pmi = launch.launched && strcmp(getenv("SLURM_PROCID"), "0") == 0;
    }
    return launch;
}
