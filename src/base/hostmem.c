/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel says about memory: peak of this process, and what is available on this host or in this cgroup. */
#include <malloc.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "dpquant/alloc.h"
#include "dpquant/str.h"

/* Names of one cgroup version: where it is mounted, and its files. */
typedef struct {
    const char *mount;
    const char *limit_file;
    const char *usage_file;
    const char *cache_key; /* in memory.stat: page cache that the kernel drops on demand */
} cgroup_layout;

static const cgroup_layout cgroup_v2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};
static const cgroup_layout cgroup_v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                        "total_inactive_file"};

/* Value behind KEY (and blanks or a colon) at the start of a line of PATH; KEY NULL: the first number of the file. */
static bool read_number(const char *path, const char *key, unsigned long long *out)
{
    FILE *file = fopen(path, "re");
    if (!file) {
        return false;
    }
    char line[512];
    bool found = false;
    size_t key_length = key ? strlen(key) : 0;
    while (!found && fgets(line, sizeof line, file)) {
        const char *value = line + key_length;
        if (key && (strncmp(line, key, key_length) != 0 || !strchr(": \t", *value))) {
            continue;
        }
        value += strspn(value, ": \t");
        if (*value < '0' || *value > '9') {
            break; /* "max": no limit */
        }
        *out = strtoull(value, NULL, 10);
        found = true;
    }
    fclose(file);
    return found;
}

size_t dpq_memory_peak_bytes(void)
{
    /* Not getrusage first: its figure survives exec, so it can be that of a larger parent. */
    unsigned long long kib = 0;
    if (read_number("/proc/self/status", "VmHWM", &kib)) {
        return (size_t)kib * 1024;
    }
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0) {
        return 0;
    }
    return (size_t)usage.ru_maxrss * 1024;
}

/* Lower *AVAILABLE to what the group GROUP and each of its parents leave. The path in /proc/self/cgroup may not exist
 * below the mount inside a container; its parents then do. */
static void apply_limits(const cgroup_layout *layout, const char *group, size_t *available)
{
    char dir[PATH_MAX];
    char path[PATH_MAX + 64];
    if (snprintf(dir, sizeof dir, "%s%s", layout->mount, group) >= (int)sizeof dir) {
        return;
    }
    for (;;) {
        unsigned long long limit = 0, usage = 0, cache = 0;
        snprintf(path, sizeof path, "%s/%s", dir, layout->limit_file);
        bool limited = read_number(path, NULL, &limit);
        snprintf(path, sizeof path, "%s/%s", dir, layout->usage_file);
        if (limited && read_number(path, NULL, &usage)) {
            snprintf(path, sizeof path, "%s/memory.stat", dir);
            if (read_number(path, layout->cache_key, &cache)) {
                usage -= cache < usage ? cache : usage;
            }
            unsigned long long left = limit > usage ? limit - usage : 0;
            if (left < *available) {
                *available = (size_t)left;
            }
        }
        char *slash = strrchr(dir, '/');
        if (strlen(dir) <= strlen(layout->mount) || !slash) {
            return;
        }
        *slash = '\0';
    }
}

size_t dpq_memory_available_bytes(void)
{
    unsigned long long kib = 0;
    size_t available = SIZE_MAX;
    if (read_number("/proc/meminfo", "MemAvailable", &kib)) {
        available = (size_t)kib * 1024;
    }
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file) {
        return available;
    }
    /* Lines are "number:controllers:group"; version 2 has number 0 and no controllers. */
    char line[PATH_MAX + 64];
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) {
            continue;
        }
        *group++ = '\0';
        controllers++;
        if (*controllers == '\0') {
            apply_limits(&cgroup_v2, group, &available);
        } else if (strcmp(controllers, "memory") == 0 || dpq_str_starts_with(controllers, "memory,") ||
                   strstr(controllers, ",memory")) {
            apply_limits(&cgroup_v1, group, &available);
        }
    }
    fclose(file);
    return available;
}

void dpq_memory_trim(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}
