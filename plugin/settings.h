/* settings.h: what the environment says. */
#ifndef QUIRE_PLUGIN_SETTINGS_H
#define QUIRE_PLUGIN_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>

#include <quire.h>

struct settings {
    const char *kv; /* QUIRE_KV: a preset or policy as `quire codecs` lists them; "off": no pages */
    quire_policy policy;
    bool off;        /* the cache stays f16 in ggml's own layout */
    size_t kv_bytes; /* QUIRE_KV_BYTES: a limit for the pages of the process; 0: none */
    bool stats;      /* QUIRE_STATS=1: a report at exit */
};

extern struct settings settings; /* filled once, when the plug-in is loaded */

/* False: `why` is a sentence that names the variable. */
bool settings_read(char *why, size_t why_bytes);

#endif
