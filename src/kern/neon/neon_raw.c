/* Raw rows with NEON, in fp32: a query's own page and the raw sinks, and sealed pages of the raw codecs.
 *
 * A block is at most 128 tokens. Scores come from 4 x 4 tiles of dot products, values from 4 rows x 16 channels. Few query
 * rows (decode) widen elements as they load them; many share rows that were widened once. What a row gets depends on
 * neither, nor on which rows share its tile.
 */
#include <string.h>

#include "base/element.h"
#include "kern/neon/rows.h"
#include "kern/ref/ref.h"

enum { T = QUIRE_PAGE_TOKENS, BLOCK = QUIRE_BLOCK_TOKENS };

typedef struct raw_work {
    float zero_row[QUIRE_DIM_MAX];
    float rows[BLOCK * QUIRE_DIM_MAX]; /* K, then V, widened */
    const uint8_t
        *row[2][BLOCK]; /* where each token's K and V are; tiles are four tokens wide, the last may be padded */
} raw_work;

typedef struct raw_block {
    quire_attend_job *job;
    raw_work *work;
    struct quire_raw_run run[2];
    int n_runs, n_tokens;
    bool direct;               /* elements are widened as they are loaded */
    quire_type k_type, v_type; /* as stored */
} raw_block;

enum { MOST_DIRECT_ROWS = 8 };

static void widen_row(quire_type type, const uint8_t *from, int n, float *to) {
    if (type == QUIRE_F16)
        widen(from, to, n);
    else if (type == QUIRE_F32)
        memcpy(to, from, (size_t)n * sizeof *to);
    else
        for (int d = 0; d < n; d += 8) {
            const uint16x8_t x = vreinterpretq_u16_u8(vld1q_u8(from + 2 * d));
            vst1q_f32(to + d, vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(x), 16)));
            vst1q_f32(to + d + 4, vreinterpretq_f32_u32(vshll_high_n_u16(x, 16)));
        }
}

/* Where the rows of K (or V) are read from: the pages themselves, or widened copies. */
static void find_rows(const raw_block *b, bool values) {
    const int dim = values ? b->job->format->v.dim : b->job->format->k.dim;
    const quire_type type = values ? b->v_type : b->k_type;
    const size_t row_bytes = (size_t)dim * quire__type_bytes(type);
    const uint8_t **row = b->work->row[values];
    int t = 0;
    for (int run = 0; run < b->n_runs; run++)
        for (int j = 0; j < b->run[run].count; j++, t++) {
            row[t] = (values ? b->run[run].v : b->run[run].k) + (size_t)j * row_bytes;
            if (b->direct)
                continue;
            float *copy = b->work->rows + t * dim;
            widen_row(type, row[t], dim, copy);
            row[t] = (const uint8_t *)copy;
        }
    for (; t % 4; t++)
        row[t] = (const uint8_t *)b->work->zero_row; /* zero in every type */
    b->job->bytes_read += (uint64_t)b->n_tokens * row_bytes;
}

static int32_t token_of(const raw_block *b, int at) {
    return at < b->run[0].count ? b->run[0].first + at : b->run[1].first + at - b->run[0].count;
}

INLINE void score_rows_of(const quire_type type, const int rows, const raw_block *b) {
    const quire_attend_job *job = b->job;
    const int n = job->n_rows * job->n_group, dim = job->format->k.dim;
    const size_t v_bytes = (size_t)job->format->v.dim * quire__type_bytes(b->v_type);
    for (int i = 0; i < n; i += rows) {
        const float *q[4];
        for (int r = 0; r < rows; r++)
            q[r] = i + r < n ? job->q + (size_t)(i + r) * (size_t)dim : b->work->zero_row;
        for (int t = 0; t < b->n_tokens; t += 4) {
            float32x4_t s[4];
            if (b->direct && i == 0) /* V of these tokens comes next, in strides that the hardware does not foresee */
                for (int j = 0; j < 4 && t + j < b->n_tokens; j++)
                    for (size_t at = 0; at < v_bytes; at += 64)
                        __builtin_prefetch(b->work->row[1][t + j] + at, 0, 3);
            dots(type, rows, q, b->work->row[0] + t, dim, s);
            for (int r = 0; r < rows && i + r < n; r++)
                vst1q_f32(job->scratch + (size_t)(i + r) * BLOCK + t, s[r]);
        }
    }
}

/* One instance per element type and tile height: a lone row must not pay for three that are not there. */
#define BY_TYPE_AND_ROWS(function, type, n, ...)                                                                       \
    do {                                                                                                               \
        if (type == QUIRE_F32)                                                                                         \
            BY_ROWS(function, QUIRE_F32, n, __VA_ARGS__);                                                              \
        else if (type == QUIRE_F16)                                                                                    \
            BY_ROWS(function, QUIRE_F16, n, __VA_ARGS__);                                                              \
        else                                                                                                           \
            BY_ROWS(function, QUIRE_BF16, n, __VA_ARGS__);                                                             \
    } while (0)
#define BY_ROWS(function, type, n, ...)                                                                                \
    do {                                                                                                               \
        if (n == 1)                                                                                                    \
            function(type, 1, __VA_ARGS__);                                                                            \
        else if (n == 2)                                                                                               \
            function(type, 2, __VA_ARGS__);                                                                            \
        else                                                                                                           \
            function(type, 4, __VA_ARGS__);                                                                            \
    } while (0)

static void score_rows(const raw_block *b) {
    const quire_type type = b->direct ? b->k_type : QUIRE_F32;
    const int n = b->job->n_rows * b->job->n_group;
    BY_TYPE_AND_ROWS(score_rows_of, type, n, b);
}

/* Hide what a row may not see, and everything else between a dot product and a logit. */
static void apply_rules(const raw_block *b) {
    const quire_attend_job *job = b->job;
    const quire_visibility *see = &job->see;
    const int n = job->n_rows * job->n_group;
    const int32_t last = see->first_position + job->n_rows - 1;
    const bool plain = see->softcap_log2 == 0 && !see->alibi && !see->mask &&
                       (see->window == 0 || last - token_of(b, 0) < see->window);
    for (int i = 0; i < n; i++) {
        float *s = job->scratch + (size_t)i * BLOCK;
        const int32_t position = see->first_position + i / job->n_group;
        for (int at = b->n_tokens - 1; at >= 0; at--) {
            const int32_t t = token_of(b, at);
            if (plain && t <= position)
                break; /* tokens ascend: all before are seen */
            s[at] = plain ? -INFINITY : quire__ref_logit(see, i / job->n_group, i % job->n_group, t, s[at]);
        }
        for (int at = b->n_tokens; at % 4; at++)
            s[at] = -INFINITY;
    }
}

typedef struct row_factors {
    float keep, add; /* of the old O; of the block's */
} row_factors;

/* Scores of a row become 2^(s - max), 0 where hidden. */
static row_factors exponentials(float *s, int n_tokens, float *m, float *l) {
    const int n = (n_tokens + 3) / 4 * 4;
    float32x4_t top = vdupq_n_f32(QUIRE_NOTHING_SEEN), sum = vdupq_n_f32(0);
    for (int t = 0; t < n; t += 4)
        top = vmaxq_f32(top, vld1q_f32(s + t));
    const float block_m = vmaxvq_f32(top);
    if (block_m == QUIRE_NOTHING_SEEN || block_m < *m - QUIRE_DROP_BELOW) {
        memset(s, 0, (size_t)n * sizeof *s);
        return (row_factors){1, 0};
    }
    for (int t = 0; t < n; t += 4) {
        const float32x4_t x = vld1q_f32(s + t);
        const uint32x4_t seen = vcgtq_f32(x, vdupq_n_f32(QUIRE_NOTHING_SEEN));
        const float32x4_t e = vreinterpretq_f32_u32(
            vandq_u32(vreinterpretq_u32_f32(exp2_exact(vsubq_f32(x, vdupq_n_f32(block_m)))), seen));
        sum = vaddq_f32(sum, e);
        vst1q_f32(s + t, e);
    }
    row_factors f = {1, 1};
    if (block_m > *m) {
        f.keep = quire__exp2(*m - block_m);
        *m = block_m;
    } else {
        f.add = quire__exp2(block_m - *m);
    }
    *l = *l * f.keep + vaddvq_f32(sum) * f.add;
    return f;
}

/* O of a tile of rows, all channels. */
INLINE void add_values_of(const quire_type type, const int rows, const raw_block *b, float *const e[4],
                          const row_factors f[4], float *const o[4]) {
    const int dim = b->job->format->v.dim;
    for (int d = 0; d < dim; d += 16) {
        float32x4_t acc[4][4];
        UNROLL for (int i = 0; i < 4 * rows; i++) acc[i / 4][i % 4] = vdupq_n_f32(0);
        for (int t = 0; t < b->n_tokens; t++) {
            float32x4_t v[4];
            UNROLL for (int j = 0; j < 4; j++) v[j] = load4(type, b->work->row[1][t], d + 4 * j);
            UNROLL for (int r = 0; r < rows; r++) {
                const float32x4_t weight = vld1q_dup_f32(e[r] + t);
                UNROLL for (int j = 0; j < 4; j++) acc[r][j] = vfmaq_f32(acc[r][j], v[j], weight);
            }
        }
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < 4; j++) {
            float *at = o[r] + d + 4 * j;
            vst1q_f32(at, vfmaq_n_f32(vmulq_n_f32(vld1q_f32(at), f[r].keep), acc[r][j], f[r].add));
        }
    }
}

static void add_values(const raw_block *b, float *const e[4], const row_factors f[4], float *const o[4]) {
    const quire_type type = b->direct ? b->v_type : QUIRE_F32;
    const int n = b->job->n_rows * b->job->n_group;
    BY_TYPE_AND_ROWS(add_values_of, type, n, b, e, f, o);
}

static void attend_block(raw_block *b, const quire_state *state) {
    quire_attend_job *job = b->job;
    const int n = job->n_rows * job->n_group, dim = job->format->v.dim;
    b->direct = n <= MOST_DIRECT_ROWS;
    find_rows(b, false);
    if (b->direct)
        find_rows(b, true);
    score_rows(b);
    apply_rules(b);
    if (!b->direct) /* the copies of K make room */
        find_rows(b, true);
    for (int i = 0; i < n; i += 4) {
        static const float nothing[BLOCK];
        float spare[QUIRE_DIM_MAX] = {0}, *e[4], *o[4];
        row_factors f[4];
        bool any = false;
        for (int r = 0; r < 4; r++) {
            const bool real = i + r < n;
            e[r] = real ? job->scratch + (size_t)(i + r) * BLOCK : (float *)nothing;
            o[r] = real ? state->o + (size_t)(i + r) * (size_t)dim : spare;
            f[r] = (row_factors){1, 0};
            if (real)
                f[r] = exponentials(e[r], b->n_tokens, &state->m[i + r], &state->l[i + r]);
            any = any || f[r].add != 0;
        }
        if (any)
            add_values(b, e, f, o);
    }
}

static void attend_raw(quire_attend_job *job, const quire_state *state) {
    raw_block b = {.job = job, .work = job->workspace, .n_runs = job->n_runs, .k_type = job->raw, .v_type = job->raw};
    quire__ref_empty_state(job, state);
    memset(b.work->zero_row, 0, sizeof b.work->zero_row);
    for (int i = 0; i < job->n_runs; i++) {
        b.run[i] = job->run[i];
        b.n_tokens += job->run[i].count;
    }
    attend_block(&b, state);
}

/* ------------------------------------------------------------------ sealed pages of the raw codecs */

static bool attend_sealed(quire_attend_job *job, const quire_state *state) {
    const quire_format *f = job->format;
    quire__ref_empty_state(job, state);
    memset(((raw_work *)job->workspace)->zero_row, 0, sizeof((raw_work *)0)->zero_row);
    for (int first = 0; first < QUIRE_CHUNK_PAGES; first += QUIRE_BLOCK_PAGES) {
        raw_block b = {.job = job, .work = job->workspace, .k_type = f->k.type, .v_type = f->v.type};
        for (int p = 0; p < QUIRE_BLOCK_PAGES; p++) {
            const uint8_t *record = job->record[first + p];
            const int32_t t0 = (job->first_page + first + p) * T, skip = t0 < job->skip ? job->skip - t0 : 0;
            if (!record || skip >= T)
                continue;
            const size_t k_row = (size_t)f->k.dim * quire__type_bytes(f->k.type),
                         v_row = (size_t)f->v.dim * quire__type_bytes(f->v.type);
            b.run[b.n_runs++] = (struct quire_raw_run){t0 + skip, T - skip, record + f->k.codes + (size_t)skip * k_row,
                                                       record + f->v.codes + (size_t)skip * v_row};
            b.n_tokens += T - skip;
        }
        if (b.n_tokens)
            attend_block(&b, state);
    }
    return true;
}

static size_t workspace_bytes(int n_rows) {
    (void)n_rows;
    return sizeof(raw_work);
}

static bool serves(const quire_format *format) {
    return format->k.family == QUIRE_FAMILY_RAW && format->v.family == QUIRE_FAMILY_RAW;
}

const quire_attend_kernel quire__attend_neon_sealed_raw = {attend_sealed, workspace_bytes, serves, "neon_raw"};
const quire_raw_kernel quire__attend_neon_raw = {attend_raw, workspace_bytes};
