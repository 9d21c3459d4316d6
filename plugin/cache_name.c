/* cache_name.c: llama.cpp's names of cache tensors. */
#include <stdlib.h>
#include <string.h>

#include "cache_name.h"

bool cache_name_parse(const char *name, struct cache_name *out) {
    static const char prefix[] = "cache_";
    const char *mark = NULL;
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return false;
    for (const char *at = name + sizeof prefix - 1; (at = strstr(at, "_l")) != NULL; at++)
        mark = at;
    if (!mark || mark == name + sizeof prefix - 1 || (mark[-1] != 'k' && mark[-1] != 'v'))
        return false;
    char *end;
    long layer = strtol(mark + 2, &end, 10);
    if (end == mark + 2 || *end || layer < 0 || layer > 1000000)
        return false;
    *out = (struct cache_name){mark[-1], (int)layer};
    return true;
}
