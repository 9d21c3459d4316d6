/* cache_args.h: parses attention shapes and codecs. Functions that return false have printed the
 * reason. */
#ifndef CLI_OPTIONS_CACHE_ARGS_H
#define CLI_OPTIONS_CACHE_ARGS_H

#include "output/text_table.h"
#include "quire.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct cli_shape {
    int32_t n_heads, n_kv_heads, k_dim, v_dim;
} cli_shape;

/* "32x8x128" or "32x8x192x128" */
bool cli_shape_parse(const char *text, cli_shape *shape);
cli_text cli_shape_text(const cli_shape *shape);

/* Help texts of options that several commands have. */
#define CLI_SHAPE_HELP "query heads x KV heads x head size; HxGxDKxDV if K and V differ in size"
#define CLI_RAW_HELP "type of rows that are not quantized: f16, bf16 or f32"
#define CLI_SINKS_HELP "keep the first N tokens raw, as attention sinks (default: from the preset)"

extern const char *const cli_raw_names[]; /* by quire_type */

/* A preset or K:V. sinks < 0: use the number of the preset. */
bool cli_policy_parse(const char *text, int32_t sinks, quire_policy *policy);
/* Whether the codecs of `policy` support this shape. `text` is --kv, for the message. */
bool cli_policy_fits(const char *text, const quire_policy *policy, const cli_shape *shape,
                     quire_type raw);
bool cli_codec_is_raw(quire_codec codec);
cli_text cli_pair_text(quire_pair pair); /* "kc8:vt4" */

#endif
