/* Codecs: 64 rows of K or V <-> one side of a page record.
 *
 *   record:  | K codes | K signs (tqp) | K parameters | V codes | V parameters |
 *
 * Every section starts at a multiple of 64 bytes, a record's length is a multiple of 128, gaps
 * are zero. docs/FORMAT.md gives every bit; layout.c places the codes, one file per family
 * (channel.c, rotated.c, affine.c, block.c) computes them. Encoding is canonical: the same rows
 * give the same bytes with every compiler and on every machine.
 */
#ifndef QUIRE_CODEC_CODEC_H
#define QUIRE_CODEC_CODEC_H

#include "base/internal.h"
#include "base/status.h"
#include "quire.h"

enum { QUIRE_SECTION_ALIGN = 64, QUIRE_RECORD_ALIGN = 128 };

typedef enum quire_family {
    QUIRE_FAMILY_RAW,     /* elements as they are, row by row */
    QUIRE_FAMILY_CHANNEL, /* kc, km: value = zero[d] + scale[d] * (code - mid) */
    QUIRE_FAMILY_UNIFORM, /* vt: rotated; value = scale[t] * unit * (code - mid) */
    /* tq: rotated; value = scale[t] * unit * book[code]; K: and the page's mean, see `zeros` */
    QUIRE_FAMILY_BOOK,
    QUIRE_FAMILY_PROD,   /* tqp: tq, and one sign per coordinate of the projected residual */
    QUIRE_FAMILY_AFFINE, /* a: value = scale[g][t] * code + bias[g][t] */
    QUIRE_FAMILY_BLOCK   /* q8_0, q4_0: value = scale[g][t] * (code - offset) */
} quire_family;

/* One side of a record: everything that packing, reading and attending need. */
typedef struct quire_side_format {
    quire_codec codec;
    quire_family family;
    bool is_v;
    bool rotated; /* codes are in the rotated space: q (for K) or the output (for V) must be too */
    int dim;      /* D */
    int bits;     /* of one code in the code section (tqp: without the sign); km: on average */
    /* km: in the first n_mixed blocks of 16 channels, 8 codes have a bit more, then 8 a bit less.
     */
    int n_mixed;
    int group;       /* channels that share a scale: D if one scale serves the row or the channel */
    int n_groups;    /* D / group */
    quire_type type; /* raw: of the elements; a8 a4 a2: of scales and biases; else f16 */
    /* The code (as expanded by quire__side_expand) in the middle of the range; km:
     * quire__code_mid. */
    float mid;
    float mid_steps;    /* affine, block: value of `mid` in steps, before any bias; else 0 */
    float unit;         /* value of one step of an expanded code, before its scale */
    const int8_t *book; /* codebook, or NULL */
    /* Index of the first of D parameters that all tokens share, one value to be added to each
     * channel (never rotated): zero of kc and km, mean of K of tq. 0: none. */
    size_t zeros;
    float max_abs;               /* the largest value that the codec can hold */
    size_t codes, signs, params; /* where the sections start in the record */
    /* Their lengths without padding; sign_bytes 0: no signs. */
    size_t code_bytes, sign_bytes, param_bytes;
} quire_side_format;

typedef struct quire_format {
    quire_side_format k, v;
    size_t bytes; /* of a record */
} quire_format;

/* Bits of channel d's codes, and the code in the middle of its range. */
static inline int quire__code_bits(const quire_side_format *side, int d) {
    return d / 16 >= side->n_mixed ? side->bits : d / 8 % 2 ? side->bits - 1 : side->bits + 1;
}
static inline float quire__code_mid(const quire_side_format *side, int d) {
    return d / 16 >= side->n_mixed ? side->mid
                                   : (float)((1 << quire__code_bits(side, d)) - 1) * 0.5f;
}

/* E_INVALID (sizes), E_UNSUPPORTED (codec cannot serve the side or the size), E_UNKNOWN (codec
 * number). */
quire_status quire__format_init(quire_format *format, quire_pair pair, int32_t k_dim, int32_t v_dim,
                                quire_type raw);

size_t quire__side_end(const quire_side_format *side); /* in the record, padding included */

/* Pack 64 rows (64, D) into this side's sections of `record`, gaps included. The first `skip`
 * tokens get zero bits and zero parameters and do not take part in any statistic. All values are
 * finite and at most max_abs. */
void quire__side_encode(const quire_side_format *side, const float *rows, int skip,
                        uint8_t *record);
void quire__side_decode(const quire_side_format *side, const uint8_t *record,
                        float *rows /* (64, D) */);
void quire__page_encode(const quire_format *format, const float *k, const float *v, int skip,
                        uint8_t *record);
/* Whether the codec can hold all values of `rows` (n); if not, *bad is the index of the first that
 * it cannot. */
bool quire__side_accepts(const quire_side_format *side, const float *rows, size_t n, size_t *bad);

/* Whether an untrusted record is safe to attend over: all values that it decodes to are finite and
 * of a size that the codec stores, and no length is negative. */
bool quire__side_valid(const quire_side_format *side, const uint8_t *record);

/* ---- for the reference kernels; fast kernels read the sections themselves */

/* Codes as small signed integers in natural order: 8-bit codes as stored, narrower ones unsigned
 * or through the book. */
void quire__side_expand(const quire_side_format *side, const uint8_t *record,
                        int8_t *codes /* (64, D) */);
void quire__side_signs(const quire_side_format *side, const uint8_t *record,
                       int8_t *signs /* (64, D): 0 or 1 */);
/* Element i of the parameter section, as fp32. */
float quire__side_param(const quire_side_format *side, const uint8_t *record, size_t i);

static inline bool quire__codec_is_raw(quire_codec codec) {
    return codec == QUIRE_CODEC_RAW || codec == QUIRE_CODEC_F32 || codec == QUIRE_CODEC_F16 ||
           codec == QUIRE_CODEC_BF16;
}

static inline bool quire__codec_is_mixed(quire_codec codec) {
    return codec == QUIRE_CODEC_KM4 || codec == QUIRE_CODEC_KM3;
}

/* ---- the channel order of km: place p of a record holds channel order[p] (channel_order.c) */

quire_status quire__check_k_dim(int32_t k_dim); /* E_INVALID */
void quire__into_order(const uint16_t *order, int dim, const float *row, float *placed);
void quire__from_order(const uint16_t *order, int dim, const float *placed, float *row);
/* The first place whose channel is out of range or repeated; dim: it is a permutation. */
int quire__order_fault(const uint16_t *order, int dim);

/* ---- pairs of channels that RoPE turns together (rope_pairs.c) */

typedef struct quire_rope_pairs {
    /* Half the channels. Channels that RoPE does not turn are paired too, with angle 0, and come
     * first. */
    int32_t n;
    uint16_t first[QUIRE_DIM_MAX / 2], second[QUIRE_DIM_MAX / 2];
    double angle[QUIRE_DIM_MAX / 2]; /* radians per position */
} quire_rope_pairs;

/* rope NULL: nothing turns. E_INVALID. */
QUIRE_INTERNAL quire_status quire__rope_pairs_init(quire_rope_pairs *pairs, const quire_rope *rope,
                                                   int32_t dim);

/* ---- query-aware rounding with error feedback (error_feedback.c) */

static inline size_t quire__n_feedback(int dim) { return (size_t)dim * (size_t)dim / 2; }
/* Of pair j: 2j weights for its first channel and 2j for its second, of the errors before them
 * in the frame of page 0; then what D (error_feedback.c) has for the pair, as the direction of
 * its ellipse: (D00 - D11, 2 D01) / (D00 + D11). */
static inline size_t quire__feedback_at(int j) { return 2 * (size_t)j * (size_t)j; }
/* E_INVALID: the message names the invalid element. */
quire_status quire__check_feedback(const float *feedback, int32_t dim);
/* Whether this side can be rounded with feedback: channel scales, fewer than 8 bits. */
static inline bool quire__side_takes_feedback(const quire_side_format *side) {
    return side->family == QUIRE_FAMILY_CHANNEL && side->bits < 8;
}

/* Error feedback for one head's K of one page. */
typedef struct quire_page_feedback {
    const float *feedback;
    /* Places in the record of the channels in the order of rounding: pair after pair. */
    uint16_t place[QUIRE_DIM_MAX];
    /* The rotation of each pair from the first page to this one. */
    float cosine[QUIRE_DIM_MAX / 2], sine[QUIRE_DIM_MAX / 2];
    /* The share of the error of a pair's first channel that its second channel takes over. */
    float within[QUIRE_DIM_MAX / 2];
} quire_page_feedback;

/* order: the record's channel order, or NULL. */
void quire__page_feedback_init(quire_page_feedback *page_feedback, const quire_rope_pairs *pairs,
                               const float *feedback, const uint16_t *order, int32_t page);
/* Rounds again with feedback, for the parameters that the record already has, and replaces its
 * codes. */
void quire__side_round_with_feedback(const quire_side_format *side, const float *rows, int skip,
                                     const quire_page_feedback *page_feedback, uint8_t *record);

#endif
