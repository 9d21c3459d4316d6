/* Attention over packed pages with AMX int8 tiles: prefill. Few rows are attended by avx512_fp16,
 * with the same bits, and codecs that it does not serve by avx512_vnni. */
#define SIMD "kern/x86/avx512_simd.h"
#define PARAMS_LOCALITY 2
#include "kern/x86/amx/amx_pages.h"
#include "kern/x86/amx/amx_half_softmax.h"
#include "kern/x86/amx/amx_softmax.h"
#include "kern/x86/amx/amx_values.h"

extern const quire_attend_kernel NAME(quire__attend_avx512_fp16);

enum { FEW = 16 }; /* with at most so many rows, VNNI straight from the page is faster */

static void empty_state(set_state *total, int dim) {
    STRIPS_EACH {
        f_store(total->m[strip], f_all(QUIRE_NOTHING_SEEN));
        f_store(total->l[strip], f_all(0));
        memset(total->o[strip], 0, (size_t)dim * sizeof(strip_rows));
    }
}

/* Row `first` is the set's first one. */
static void write_state(const quire_attend_job *job, int first, set_state *total,
                        const quire_state *state) {
    const int dim = job->format->v.dim;
    STRIPS_EACH {
        const int at = first + strip * STRIP, n = strip_size(job, at);
        const __mmask16 rows = (__mmask16)((1 << n) - 1);
        if (n == 0)
            break;
        _mm512_mask_storeu_ps(state->m + at, rows, f_load(total->m[strip]));
        _mm512_mask_storeu_ps(state->l + at, rows, f_load(total->l[strip]));
        strip_to_rows(total->o[strip], n, dim, state->o + (size_t)at * (size_t)dim);
    }
}

/* Adds the chunk to a set's state. */
static void attend_set(const quire_attend_job *job, int first, row_set *set, amx_work *w) {
    const quire_format *f = job->format;
    int blocks[CHUNK_BLOCKS], n_blocks = 0;
    STRIPS_EACH {
        f_store(w->m[strip], f_all(QUIRE_NOTHING_SEEN));
        f_store(w->l[strip], f_all(0));
        f_store(w->constant[strip], f_all(0));
    }
    if (f->k.zeros)
        zero_products(&set->q, f->k.dim, w);
    for (int block = 0; block < CHUNK_BLOCKS; block++) {
        const int page = block * PAGES;
        const bool *present = w->pages.present + page;
        const score_kind as = scores_of_block(job, present, page);
        for (int p = 0; p < PAGES; p++)
            if (present[p])
                score_page(job, page + p, p, first, as, &set->q, w);
        if (!present[0] && !present[1])
            continue;
        if (f->v.bits == 8)
            finish_wide_block(&f->v, as == INTEGERS, block, w);
        else
            finish_half_block(&f->v, as, block, w);
        if (w->update[block].alive)
            blocks[n_blocks++] = block;
    }
    if (n_blocks && f->v.bits == 8)
        weigh_values(true, &f->v, blocks, n_blocks, job->follows, w, &set->total);
    else if (n_blocks)
        weigh_values(false, &f->v, blocks, n_blocks, job->follows, w, &set->total);
    else if (!job->follows)
        empty_state(&set->total, f->v.dim);
}

static bool gathers(int n_rows) { return n_rows > FEW; }

static void attend(quire_attend_job *job, const quire_state *state) {
    const int n = job->n_rows * job->n_group;
    amx_work *w = job->workspace;
    if (!gathers(n)) {
        NAME(quire__attend_avx512_fp16).attend(job, state);
        return;
    }
    place_tiles(n, job->format->k.dim, w);
    const bool any = load_chunk(job, &w->pages) > 0;
    if (any && job->format->k.dim % PART) /* channels beyond D meet zeros */
        memset(w->q8, 0, sizeof w->q8);
    w->awake = job->format->k.bits < 8 || job->format->v.bits < 8;
    const tile_config before = tiles_on();
    for (int first = 0; first < n; first += SET_ROWS) {
        row_set *set = &w->sets[first / SET_ROWS];
        if (job->q_is_new)
            load_queries(job, first, &set->q);
        if (any)
            attend_set(job, first, set, w);
        else if (!job->follows)
            empty_state(&set->total, job->format->v.dim);
        if (!job->goes_on)
            write_state(job, first, &set->total, state);
    }
    tiles_off(&before);
}

static size_t workspace_bytes(int n_rows, int k_dim, int v_dim) {
    const size_t few = NAME(quire__attend_avx512_fp16).workspace_bytes(n_rows, k_dim, v_dim),
                 many = sizeof(amx_work) + (size_t)sets_of(n_rows) * sizeof(row_set) +
                        (k_tiles_of_chunk(k_dim) + v_tiles_of_chunk(v_dim)) * TILE_BYTES;
    return few > many || k_dim > AMX_DIM_MAX || v_dim > AMX_DIM_MAX ? few : many;
}

static bool serves_width(const quire_side_format *side) {
    return side->dim <= AMX_DIM_MAX &&
           (side->bits == 8 || side->bits == 4 || side->bits == 3 || side->bits == 2);
}

static bool serves(const quire_format *format) {
    const quire_side_format *k = &format->k, *v = &format->v;
    return serves_width(k) && serves_width(v) &&
           (k->family == QUIRE_FAMILY_CHANNEL || k->family == QUIRE_FAMILY_BOOK) &&
           (v->family == QUIRE_FAMILY_UNIFORM || v->family == QUIRE_FAMILY_BOOK);
}

const quire_attend_kernel NAME(quire__attend_amx) = {attend, workspace_bytes, serves, LEVEL("amx"),
                                                     gathers};
