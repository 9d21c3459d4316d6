/* Page sizes, and tests on a job, which all attention kernels share. */
#ifndef QUIRE_KERN_SHARED_JOB_H
#define QUIRE_KERN_SHARED_JOB_H

#include "kern/kern.h"

enum {
    T = QUIRE_PAGE_TOKENS,     /* tokens of a page */
    PAGES = QUIRE_BLOCK_PAGES, /* pages of a block */
    BLOCK = QUIRE_BLOCK_TOKENS /* tokens of a block */
};

/* One scale per token and no zero: vt, tq, tqp. */
static inline bool is_token_scaled(quire_family family) {
    return family == QUIRE_FAMILY_UNIFORM || family == QUIRE_FAMILY_BOOK ||
           family == QUIRE_FAMILY_PROD;
}

/* Both sides raw: raw_tmpl.h serves these pairs, the packed kernels all others. */
static inline bool is_raw_pair(const quire_format *format) {
    return format->k.family == QUIRE_FAMILY_RAW && format->v.family == QUIRE_FAMILY_RAW;
}

/* Position of the first token of page i of the chunk. */
static inline int32_t first_token(const quire_attend_job *job, int i) {
    return (job->first_page + i) * T;
}

/* The page one block after page i of the chunk, to be fetched ahead; NULL: none. */
static inline const uint8_t *page_ahead(const quire_attend_job *job, int i) {
    const int next = i + PAGES;
    return next < QUIRE_CHUNK_PAGES ? job->record[next] : job->next[next - QUIRE_CHUNK_PAGES];
}

/* Whether soft-cap, ALiBi or a mask come between a score and its logit. */
static inline bool changes_logits(const quire_visibility *see) {
    return see->softcap_log2 > 0 || see->alibi || see->mask;
}

/* Whether page i of the chunk has tokens that some row does not see: window edges and raw sinks. */
static inline bool hides_tokens(const quire_attend_job *job, int i) {
    const quire_visibility *see = &job->see;
    const int32_t t0 = first_token(job, i), last = see->first_position + job->n_rows - 1;
    return t0 < job->skip || (see->window != 0 && last - t0 >= see->window && t0 + T > see->keep);
}

/* Of a page that hides tokens: whether raw sinks are the only reason. */
static inline bool hides_sinks_alone(const quire_attend_job *job, int i) {
    const quire_visibility *see = &job->see;
    const int32_t t0 = first_token(job, i), last = see->first_position + job->n_rows - 1;
    return !changes_logits(see) && see->first_position >= t0 + T - 1 &&
           (see->window == 0 || last - t0 < see->window);
}

/* Whether a mask is all that comes between the scores and the logits of page i: a vector can add
 * it. */
static inline bool is_mask_alone(const quire_attend_job *job, int i) {
    const quire_visibility *see = &job->see;
    return see->mask && see->softcap_log2 == 0 && !see->alibi && see->window == 0 &&
           see->first_position >= first_token(job, i) + T - 1 && first_token(job, i) >= job->skip;
}

/* The mask of a row and head of the job, from token 0 on. */
static inline const float *mask_of(const quire_attend_job *job, int row) {
    const quire_visibility *see = &job->see;
    return see->mask + (size_t)(row / job->n_group) * see->mask_row_stride +
           (size_t)(row % job->n_group) * see->mask_head_stride;
}

#endif
