/* Template: attention over raw rows, that is a query's own page, raw sinks, and sealed pages of the
 * raw codecs. One source for every instruction set, included by one file per level.
 *
 * Parameters:
 *   SIMD    header of the vectors: fvec of W floats, the operations on it, and TILE_SUMS, the
 *           number of sums that the registers hold at a time
 *   NARROW  optional: header of the products of 16-bit elements (neon/raw_narrow_tmpl.h)
 * Defines attend_raw, attend_sealed, workspace_bytes and serves.
 *
 * A block is at most 128 tokens. Scores come from tiles of four dot products per row, values
 * from a few vectors of channels. In fp32, few query rows (decode) widen elements as they load
 * them; many rows share rows that were widened once. Narrow types are multiplied as they lie in
 * the page. A row's result depends on the type alone, not on these choices nor on the rows that
 * share its tile.
 */
#ifndef QUIRE_KERN_SHARED_RAW_TMPL_H
#define QUIRE_KERN_SHARED_RAW_TMPL_H

#ifndef SIMD
#error "raw_tmpl.h needs SIMD"
#endif

#include "base/element.h"
#include "kern/ref/ref.h"
#include "kern/shared/elements_tmpl.h"
#include "kern/shared/job.h"
#include "kern/shared/raw_tile.h"

#ifdef NARROW
#include NARROW
#else
typedef float narrow_query;
INLINE bool is_narrow(quire_type type) { return (void)type, false; }
#define narrow_tokens(type, rows) 4
#define narrow_vectors(type, rows) 4
#define narrow_unit(type) 1
#define narrow_prepare(...) (void)0
#define narrow_dots(...) (void)0
#define narrow_weights(...) 0
#define narrow_values(...) (void)0
#endif

typedef struct raw_work {
    /* Zero in every type; stands in for tokens that the last tile lacks. */
    float zero_row[QUIRE_DIM_MAX];
    float rows[BLOCK * QUIRE_DIM_MAX]; /* widened K, later V */
    const uint8_t *row[2][BLOCK];      /* where each token's K and V are */
    narrow_query query[];              /* one per tile of rows, if K is narrow */
} raw_work;

typedef struct raw_block {
    quire_attend_job *job;
    raw_work *work;
    struct quire_raw_run run[2];
    int n_runs, start[2]; /* where a run's tokens start in the block */
    int n_tokens;         /* of the block, gaps included */
    quire_type type[2];   /* K, V: as stored */
    /* K, V: multiplied as stored; read from the pages themselves, not from widened copies. */
    bool narrow[2], direct[2];
    /* The next block's pages; NULL: nothing to fetch meanwhile. */
    const uint8_t *ahead[QUIRE_BLOCK_PAGES];
} raw_block;

enum { MOST_DIRECT_ROWS = 8, TILE_TOKENS = 8 /* of the widest tile */ };

static void widen_row(quire_type type, const uint8_t *from, int n, float *to) {
    for (int i = 0; i < n; i += W)
        f_store(to + i, load_elements(type, from, i));
}

/* A token's place is its position modulo 4W, the number of lanes in which sums are taken: a row
 * must get the same bits whether or not tokens that it does not see come before. */
static void add_run(raw_block *b, struct quire_raw_run run) {
    const int lanes = 4 * W, start = (b->n_tokens + lanes - 1) / lanes * lanes + run.first % lanes;
    b->run[b->n_runs] = run;
    b->start[b->n_runs++] = start;
    b->n_tokens = start + run.count;
}

/* Finds where the rows of K (or V) are read from: the pages themselves, or widened copies; zeros
 * where there is no token. */
static void find_rows(const raw_block *b, bool values) {
    const int dim = values ? b->job->format->v.dim : b->job->format->k.dim;
    const quire_type type = b->type[values];
    const size_t row_bytes = (size_t)dim * quire__type_bytes(type);
    const uint8_t **row = b->work->row[values], *nothing = (const uint8_t *)b->work->zero_row;
    int t = 0;
    for (int run = 0; run < b->n_runs; run++) {
        for (; t < b->start[run]; t++)
            row[t] = nothing;
        for (int j = 0; j < b->run[run].count; j++, t++) {
            row[t] = (values ? b->run[run].v : b->run[run].k) + (size_t)j * row_bytes;
            if (b->direct[values])
                continue;
            float *copy = b->work->rows + t * dim;
            widen_row(type, row[t], dim, copy);
            row[t] = (const uint8_t *)copy;
        }
        b->job->bytes_read += (uint64_t)b->run[run].count * row_bytes;
    }
    for (; t % TILE_TOKENS; t++)
        row[t] = nothing;
}

/* The block without the tokens after row i of the job. Sums of weights go by 4W tokens, of which
 * the hidden ones add exactly nothing. */
static raw_block up_to_row(const raw_block *b, int i) {
    const int32_t position = b->job->see.first_position + i / b->job->n_group, lanes = 4 * W;
    raw_block seen = *b;
    int32_t end = 0;
    for (int run = 0; run < b->n_runs; run++) {
        const int32_t n = position - b->run[run].first + 1;
        if (n < seen.run[run].count)
            seen.run[run].count = n < 0 ? 0 : n;
        if (seen.run[run].count)
            end = b->start[run] + seen.run[run].count;
    }
    end = (end + lanes - 1) / lanes * lanes;
    seen.n_tokens = end < b->n_tokens ? end : b->n_tokens;
    return seen;
}

/* ------------------------------------------------------------------ scores */

/* Narrow types: fetches the next block into L2 in memory order and in even steps, its first page
 * while tokens are scored, its second while they are weighed (weigh_ahead). The hardware prefetcher
 * follows the order of use, K of two pages and then V of both, which reaches half the speed of
 * memory. Wide types: V while its tokens are scored, K of the next block while V is weighed
 * (add_vectors). */
INLINE void fetch(const raw_block *b, int t, int n, size_t v_bytes /* of a row */) {
    const size_t share = b->job->format->bytes / BLOCK;
    /* V of these tokens is used next, in strides. */
    for (int j = t; j < t + n && j < b->n_tokens; j++)
        for (size_t at = 0; at < v_bytes; at += 64)
            __builtin_prefetch(b->work->row[1][j] + at, 0, 3);
    if (b->narrow[1] && b->ahead[0])
        for (size_t at = (size_t)t * share; at < (size_t)(t + n) * share; at += 64)
            __builtin_prefetch(b->ahead[0] + at, 0, 2);
}

/* Where to fetch n lines per eight tokens from, while n vectors of channels from d on are
 * weighed. */
INLINE const uint8_t *weigh_ahead(const raw_block *b, const float *e, int d, int n) {
    const bool first_tile = e == b->job->scratch;
    return first_tile && b->ahead[1]
               ? b->ahead[1] + (size_t)(d / (4 * n)) * (size_t)(BLOCK / 8 * n * 64)
               : NULL;
}

INLINE void score_rows_of(const quire_type type, const bool narrow, const int rows,
                          const raw_block *b, int i) {
    const quire_attend_job *job = b->job;
    const int dim = job->format->k.dim, tokens = narrow ? narrow_tokens(type, rows) : 4;
    const size_t v_bytes = (size_t)job->format->v.dim * quire__type_bytes(b->type[1]),
                 row_bytes = (size_t)dim * quire__type_bytes(type);
    const float *q[TILE_ROWS];
    for (int r = 0; r < rows; r++)
        q[r] = job->q + (size_t)(i + r) * (size_t)dim;
    for (int run = 0; run < b->n_runs; run++) {
        const int end = b->start[run] + b->run[run].count;
        for (int t = b->start[run] / tokens * tokens; t < end; t += tokens) {
            const uint8_t *const *k = b->work->row[0] + t;
            float *s = job->scratch + (size_t)i * BLOCK + t;
            if (b->direct[1] && i == 0)
                fetch(b, t, tokens, rows > 2 && b->narrow[1] ? 64 : v_bytes);
            if (narrow && type == QUIRE_F16 && rows > 2 && row_bytes >= 256 &&
                t + 2 * tokens <= end)
                for (int j = 0; j < tokens; j++) /* long rows of f16 wait for L2 */
                    for (size_t at = 0; at < row_bytes; at += 64)
                        __builtin_prefetch(k[tokens + j] + at, 0, 3);
            if (narrow)
                narrow_dots(type, rows, tokens, &b->work->query[i / TILE_ROWS], k, dim, s, BLOCK);
            else
                dots(type, rows, q, k, dim, s, BLOCK);
        }
    }
}

static void hide(float *s, int from, int to) {
    for (int at = from; at < to; at++)
        s[at] = -INFINITY;
}

/* Hides what a row may not see, and applies everything else between a dot product and a logit. */
static void apply_rules(const raw_block *b) {
    const quire_attend_job *job = b->job;
    const quire_visibility *see = &job->see;
    const int n = job->n_rows * job->n_group, lanes = 4 * W;
    const int32_t last = see->first_position + job->n_rows - 1;
    const bool plain = see->softcap_log2 == 0 && !see->alibi && !see->mask &&
                       (see->window == 0 || last - b->run[0].first < see->window);
    bool mask_alone = see->mask && see->softcap_log2 == 0 && !see->alibi && see->window == 0;
    for (int run = 0; run < b->n_runs; run++)
        mask_alone = mask_alone && b->run[run].first + b->run[run].count - 1 <= see->first_position;
    for (int i = 0; i < n; i++) {
        float *s = job->scratch + (size_t)i * BLOCK;
        const int32_t position = see->first_position + i / job->n_group;
        int end = 0;
        for (int run = 0; run < b->n_runs; run++) {
            const int start = b->start[run], shift = b->run[run].first - start;
            hide(s, end, start);
            end = start + b->run[run].count;
            if (mask_alone) {
                const float *mask = mask_of(job, i) + b->run[run].first;
                for (int at = start; at < end; at++)
                    s[at] += QUIRE_LOG2E * mask[at - start];
                continue;
            }
            for (int at = end - 1; at >= start; at--) {
                if (plain && at + shift <= position)
                    break; /* tokens ascend: all earlier ones are visible */
                s[at] = plain ? -INFINITY
                              : quire__ref_logit(see, i / job->n_group, i % job->n_group,
                                                 at + shift, s[at]);
            }
        }
        hide(s, end, (end + lanes - 1) / lanes * lanes);
    }
}

/* ------------------------------------------------------------------ softmax and values */

typedef struct row_factors {
    float keep, add; /* factors of the old O and of the block's */
} row_factors;

/* Turns the scores of a row into 2^(s - m), 0 where hidden; returns their sum. */
static float exponentials(float *s, int n_tokens, float m) {
    fvec sum[4];
    EACH sum[u] = f_all(0);
    for (int t = 0; t < n_tokens; t += 4 * W) {
        fvec x[4], e[4];
        EACH x[u] = f_load(s + t + u * W);
        EACH e[u] = f_sub(x[u], f_all(m));
        exp2_exact_each(4, e);
        EACH e[u] = f_where_above(x[u], QUIRE_NOTHING_SEEN, e[u]);
        EACH sum[u] = f_add(sum[u], e[u]);
        EACH f_store(s + t + u * W, e[u]);
    }
    return f_sum(f_add(f_add(sum[0], sum[1]), f_add(sum[2], sum[3])));
}

/* Turns the scores of a row into weights. */
static row_factors weigh_row(const raw_block *b, float *s, float *m, float *l) {
    const int n_tokens = b->n_tokens;
    fvec top[4];
    EACH top[u] = f_all(QUIRE_NOTHING_SEEN);
    for (int t = 0; t < n_tokens; t += 4 * W)
        EACH top[u] = f_max(top[u], f_load(s + t + u * W));
    const float block_m = f_largest(f_max(f_max(top[0], top[1]), f_max(top[2], top[3])));
    if (block_m == QUIRE_NOTHING_SEEN || block_m < *m - QUIRE_DROP_BELOW)
        return (row_factors){1, 0};
    const float sum = b->narrow[1] ? narrow_weights(b->type[1], s, n_tokens, block_m)
                                   : exponentials(s, n_tokens, block_m);
    row_factors f = {1, 1};
    if (block_m > *m) {
        f.keep = quire__exp2(*m - block_m);
        *m = block_m;
    } else {
        f.add = quire__exp2(block_m - *m);
    }
    if (b->narrow[1])
        f.add *= narrow_unit(b->type[1]);
    *l = *l * f.keep + sum * f.add;
    return f;
}

/* n vectors of channels, from d on. */
INLINE void add_vectors(const quire_type type, const bool narrow, const int rows, const int n,
                        const raw_block *b, const float *e, const row_factors *f, float *o, int dim,
                        int d) {
    fvec acc[TILE_ROWS][VALUE_SUMS];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < n; j++) acc[r][j] = f_all(0);
    if (narrow)
        narrow_values(type, rows, n, e, b->work->row[1], b->n_tokens, d, acc,
                      weigh_ahead(b, e, d, n));
    /* These channels' share of the next block's K is fetched meanwhile; not with f32, because most
     * of its rows are copies, and the loop is the limit. */
    const quire_format *format = b->job->format;
    const bool fetches =
        !narrow && type != QUIRE_F32 && e == b->job->scratch && b->ahead[0] && b->ahead[1];
    const size_t k_row = (size_t)format->k.dim * quire__type_bytes(b->type[0]),
                 part = fetches ? k_row * (size_t)(n * W) / (size_t)dim : 0,
                 start = k_row * T * (size_t)d / (size_t)dim;
    const uint8_t *ahead[QUIRE_BLOCK_PAGES] = {NULL};
    for (int p = 0; p < QUIRE_BLOCK_PAGES && fetches; p++)
        ahead[p] = b->ahead[p] + format->k.codes + start;
    for (int run = 0; run < b->n_runs && !narrow; run++)
        for (int t = b->start[run], end = t + b->run[run].count; t < end; t++) {
            fvec v[4];
            for (size_t at = 0; at < part; at += 64)
                __builtin_prefetch(ahead[t / T] + (size_t)(t % T) * part + at, 0, 2);
            UNROLL for (int j = 0; j < n; j++) v[j] =
                load_elements(type, b->work->row[1][t], d + j * W);
            UNROLL for (int r = 0; r < rows; r++) {
                const fvec weight = f_all(e[r * BLOCK + t]);
                UNROLL for (int j = 0; j < n; j++) acc[r][j] = f_fma(v[j], weight, acc[r][j]);
            }
        }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < n; j++) {
        float *at = o + r * dim + d + j * W;
        f_store(at, f_fma(acc[r][j], f_all(f[r].add), f_mul(f_load(at), f_all(f[r].keep))));
    }
}

INLINE void add_values_of(const quire_type type, const bool narrow, const int rows,
                          const raw_block *b, const float *e, const row_factors *f, float *o) {
    const int dim = b->job->format->v.dim;
    /* As many vectors at a time as there are registers for, then what divides the rest. */
    const int wide = rows * 4 <= TILE_SUMS ? 4 : 2,
              most = narrow ? narrow_vectors(type, rows) : wide, least = narrow ? 2 : 1;
    int d = 0;
    for (; d + most * W <= dim; d += most * W)
        add_vectors(type, narrow, rows, most, b, e, f, o, dim, d);
    for (; d < dim; d += least * W)
        add_vectors(type, narrow, rows, least, b, e, f, o, dim, d);
}

/* ------------------------------------------------------------------ instances */

/* One function per element type, way to multiply and tile height: a lone row must not pay for rows
 * that are not there, and compilers allocate registers better for one tile than for several. */
typedef struct instance {
    void (*score[TILE_ROWS])(const raw_block *b, int i); /* for 1 to 4 rows */
    void (*add[TILE_ROWS])(const raw_block *b, const float *e, const row_factors *f, float *o);
} instance;

#define INSTANCE_ROWS(name, type, narrow, rows)                                                    \
    static void score_##name##_##rows(const raw_block *b, int i) {                                 \
        score_rows_of(type, narrow, rows, b, i);                                                   \
    }                                                                                              \
    static void add_##name##_##rows(const raw_block *b, const float *e, const row_factors *f,      \
                                    float *o) {                                                    \
        add_values_of(type, narrow, rows, b, e, f, o);                                             \
    }
#define INSTANCE(name, type, narrow)                                                               \
    INSTANCE_ROWS(name, type, narrow, 1)                                                           \
    INSTANCE_ROWS(name, type, narrow, 2)                                                           \
    INSTANCE_ROWS(name, type, narrow, 3)                                                           \
    INSTANCE_ROWS(name, type, narrow, 4)                                                           \
    static const instance name = {                                                                 \
        {score_##name##_1, score_##name##_2, score_##name##_3, score_##name##_4},                  \
        {add_##name##_1, add_##name##_2, add_##name##_3, add_##name##_4}};
INSTANCE(WIDEN_F32, QUIRE_F32, false)
INSTANCE(WIDEN_F16, QUIRE_F16, false)
INSTANCE(WIDEN_BF16, QUIRE_BF16, false)
#ifdef NARROW
INSTANCE(NARROW_F16, QUIRE_F16, true)
INSTANCE(NARROW_BF16, QUIRE_BF16, true)
#endif

static const instance *instance_of(const raw_block *b, int side) {
    const quire_type type = b->direct[side] ? b->type[side] : QUIRE_F32;
#ifdef NARROW
    if (b->narrow[side])
        return type == QUIRE_F16 ? &NARROW_F16 : &NARROW_BF16;
#endif
    return type == QUIRE_F32 ? &WIDEN_F32 : type == QUIRE_F16 ? &WIDEN_F16 : &WIDEN_BF16;
}

INLINE int tile_rows(int left, int most) { return left < most ? left : most; }

static void score_rows(const raw_block *b) {
    const instance *by = instance_of(b, 0);
    const int n = b->job->n_rows * b->job->n_group, most = b->narrow[0] ? TILE_ROWS : TILE_SUMS / 4;
    for (int i = 0, rows; i < n; i += rows) {
        rows = tile_rows(n - i, most);
        const raw_block seen = up_to_row(b, i + rows - 1);
        by->score[rows - 1](&seen, i);
    }
}

static void attend_block(raw_block *b, const quire_state *state) {
    quire_attend_job *job = b->job;
    const int n = job->n_rows * job->n_group, dim = job->format->v.dim;
    for (int side = 0; side < 2; side++)
        b->direct[side] = n <= MOST_DIRECT_ROWS || b->narrow[side];
    const instance *by = instance_of(b, 1);
    find_rows(b, false);
    if (b->direct[1])
        find_rows(b, true);
    score_rows(b);
    apply_rules(b);
    if (!b->direct[1]) /* overwrites the copies of K */
        find_rows(b, true);
    for (int i = 0; i < n;) {
        /* Up to four consecutive rows that see something. A row that sees nothing is left alone. */
        const raw_block tokens = up_to_row(b, i + 3 < n ? i + 3 : n - 1);
        row_factors f[4];
        int seen = 0;
        for (; seen < 4 && i + seen < n; seen++) {
            f[seen] = weigh_row(&tokens, job->scratch + (size_t)(i + seen) * BLOCK,
                                &state->m[i + seen], &state->l[i + seen]);
            if (f[seen].add == 0)
                break;
        }
        if (seen > 0)
            by->add[seen - 1](&tokens, job->scratch + (size_t)i * BLOCK, f,
                              state->o + (size_t)i * (size_t)dim);
        i += seen < 4 ? seen + 1 : seen; /* and past the row that saw nothing */
    }
}

static bool serves(const quire_format *format) { return is_raw_pair(format); }

/* Empties the state, and returns a block without tokens. */
static raw_block start(quire_attend_job *job, quire_type k_type, quire_type v_type,
                       const quire_state *state) {
    const quire_format *f = job->format;
    raw_block b = {.job = job, .work = job->workspace, .type = {k_type, v_type}};
    /* All tokens of a layer must meet the same q: the effect of rounding q on the part of K that
     * the tokens share then cancels. So a side is narrow only if the layer's own page and its
     * sealed pages both are. */
    if (serves(f) && is_narrow(job->raw)) {
        b.narrow[0] = f->k.type == job->raw;
        b.narrow[1] = f->v.type == job->raw;
    }
    quire__ref_empty_state(job, state);
    memset(b.work->zero_row, 0, sizeof b.work->zero_row);
    if (b.narrow[0])
        for (int i = 0, n = job->n_rows * job->n_group; i < n; i += TILE_ROWS)
            narrow_prepare(k_type, tile_rows(n - i, TILE_ROWS),
                           job->q + (size_t)i * (size_t)f->k.dim, f->k.dim,
                           &b.work->query[i / TILE_ROWS]);
    return b;
}

static void attend_raw(quire_attend_job *job, const quire_state *state) {
    raw_block b = start(job, job->raw, job->raw, state);
    for (int i = 0; i < job->n_runs; i++)
        add_run(&b, job->run[i]);
    attend_block(&b, state);
}

/* --------------------------------------------------------------- sealed pages of the raw codecs */

static void attend_sealed(quire_attend_job *job, const quire_state *state) {
    const quire_format *f = job->format;
    const size_t k_row = (size_t)f->k.dim * quire__type_bytes(f->k.type),
                 v_row = (size_t)f->v.dim * quire__type_bytes(f->v.type);
    const raw_block empty = start(job, f->k.type, f->v.type, state);
    for (int first = 0; first < QUIRE_CHUNK_PAGES; first += QUIRE_BLOCK_PAGES) {
        raw_block b = empty;
        for (int p = 0; p < QUIRE_BLOCK_PAGES; p++) {
            const uint8_t *record = job->record[first + p];
            b.ahead[p] = page_ahead(job, first + p);
            const int32_t t0 = first_token(job, first + p),
                          skip = t0 < job->skip ? job->skip - t0 : 0;
            if (!record || skip >= T)
                continue;
            add_run(&b, (struct quire_raw_run){t0 + skip, T - skip,
                                               record + f->k.codes + (size_t)skip * k_row,
                                               record + f->v.codes + (size_t)skip * v_row});
        }
        if (b.n_tokens)
            attend_block(&b, state);
    }
}

static size_t workspace_bytes(int n_rows, int k_dim, int v_dim) {
    (void)k_dim, (void)v_dim; /* of any size */
    return sizeof(raw_work) + (size_t)((n_rows + TILE_ROWS - 1) / TILE_ROWS) * sizeof(narrow_query);
}

#endif
