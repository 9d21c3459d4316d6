/* settings.h: what the environment says. */
#ifndef QUIRE_PLUGIN_SETTINGS_H
#define QUIRE_PLUGIN_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>

#include <quire.h>

struct settings {
    /* QUIRE_KV: a preset or pair as `quire codecs` lists them; "auto": the most exact preset that
     * fits kv_bytes; "off": no pages. Default: k8v8, or auto if there is a QUIRE_KV_BYTES. */
    const char *kv;
    quire_policy policy; /* of QUIRE_KV, if it is neither */
    bool automatic;
    bool off;        /* the cache stays f16 in ggml's own layout */
    size_t kv_bytes; /* QUIRE_KV_BYTES: a limit for the pages of the process; 0: none */
    bool stats;      /* QUIRE_STATS=1: a report at exit */
};

extern struct settings settings; /* filled once, when the plug-in is loaded */

/* False: `why` is a sentence that names the variable. */
bool settings_read(char *why, size_t why_bytes);

#endif
