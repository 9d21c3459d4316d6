/* mlx_cache.h: reads and writes prompt caches of mlx-lm, in both of its layouts.
 *
 *   meta_state (mlx-lm before 0.32)  metadata 0.LAYER.n: numbers as text, 1.NAME: the user's,
 *                                    2.LAYER: class
 *   scalars    (mlx-lm 0.32)         metadata 0.NAME: the user's, 1.LAYER: class, 2.n.0, 2.n.1:
 *              arrays that are numbers
 *
 * Arrays are LAYER.0 (keys) and LAYER.1 (values), of shape (1, KV heads, tokens, size);
 * quantized ones LAYER.0.0 codes, LAYER.0.1 scales, LAYER.0.2 biases. The numbers of a layer, in
 * either layout's order:
 *   KVCache                   offset (scalars only)
 *   QuantizedKVCache          offset group bits, or offset K-group K-bits V-group V-bits
 *   RotatingKVCache           keep size offset place (meta_state); offset keep size place
 *                             (scalars)
 *   QuantizedRotatingKVCache  those of RotatingKVCache, then K-group K-bits V-group V-bits
 *                             (meta_state only) */
#ifndef CLI_MLX_MLX_CACHE_H
#define CLI_MLX_MLX_CACHE_H

#include "mlx/safetensors.h"
#include "quire.h"

typedef struct cli_mlx_side {
    int32_t bits, group; /* 0: not quantized */
    int32_t dim;
    quire_codec codec;
    cli_tensor rows[3]; /* codes, scales, biases; or rows alone */
} cli_mlx_side;

typedef struct cli_mlx_layer {
    bool rotating;
    int32_t n_kv_heads, n_rows; /* of the arrays */
    int32_t offset, keep, size, place;
    cli_mlx_side side[2]; /* K, V */
} cli_mlx_layer;

typedef struct cli_mlx_cache {
    cli_safetensors file;
    bool scalars; /* its layout */
    cli_mlx_layer *layers;
    int32_t n_layers, n_tokens;
    quire_type raw;
} cli_mlx_cache;

bool cli_mlx_open(cli_mlx_cache *cache, const char *path); /* false, with a message */
void cli_mlx_close(cli_mlx_cache *cache);                  /* after a failed open too */
/* The row of a token in the arrays of a layer; -1: the ring has dropped it. */
int32_t cli_mlx_row(const cli_mlx_layer *layer, int32_t token);

int cli_mlx_to_quire(const char *from, const char *to); /* exit status */

typedef struct cli_mlx_options {
    const char *kv; /* codecs for layers whose own codecs mlx does not have; NULL: not given */
    int32_t layout; /* cli_mlx_layout */
} cli_mlx_options;

enum cli_mlx_layout { CLI_MLX_AUTO, CLI_MLX_META_STATE, CLI_MLX_SCALARS };

int cli_mlx_from_quire(const char *from, const char *to, const cli_mlx_options *options);

#endif
