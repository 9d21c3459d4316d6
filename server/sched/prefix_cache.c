/* prefix_cache.c: prompts that begin alike share pages. A new prompt forks the sequence with which
 * it has the most tokens in common, whether that is still being computed or has finished. */
#include "sched/lane.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = QUIRE_PAGE_TOKENS };

static int32_t common_tokens(const int32_t *a, int32_t n_a, const int32_t *b, int32_t n_b) {
    const int32_t most = n_a < n_b ? n_a : n_b;
    int32_t n = 0;
    while (n < most && a[n] == b[n])
        n++;
    return n;
}

/* What a prompt can use of a sequence: at least one token is left to compute, and a cut inside a
 * sealed page, which would not be exact, moves to the start of that page. In exact mode only tokens
 * of exact steps count. */
static int32_t usable(const srv_lane *lane, const srv_choice *choice, const int32_t *other,
                      int32_t n_other, int32_t n_exact) {
    int32_t n = common_tokens(choice->text, choice->n_text - 1, other, n_other);
    if (lane->exact && n > n_exact)
        n = n_exact;
    return n / PAGE < n_other / PAGE ? n - n % PAGE : n;
}

typedef struct candidate {
    quire_seq *seq;
    int32_t n, n_exact;
    srv_prefix *prefix;
} candidate;

static void consider(candidate *best, quire_seq *seq, int32_t n, int32_t n_exact,
                     srv_prefix *prefix) {
    if (n > best->n)
        *best = (candidate){seq, n, n_exact < n ? n_exact : n, prefix};
}

static bool may_share(const srv_choice *choice, const char *salt) {
    return strcmp(choice->job->salt, salt) == 0;
}

static candidate find_best(const srv_lane *lane, const srv_choice *choice) {
    candidate best = {0};
    for (int32_t i = 0; i < lane->n_prefixes; i++) {
        srv_prefix *p = &lane->prefixes[i];
        if (may_share(choice, p->salt))
            consider(&best, p->seq, usable(lane, choice, p->text, p->n_text, p->n_exact),
                     p->n_exact, p);
    }
    srv_walk walk = {0};
    for (srv_choice *other; (other = srv_lane_next(lane, &walk));)
        if (other->seq && may_share(choice, other->job->salt))
            consider(
                &best, other->seq,
                usable(lane, choice, other->text, quire_seq_length(other->seq), other->n_exact),
                other->n_exact, NULL);
    return best;
}

void srv_prefix_fork(srv_lane *lane, const srv_choice *choice, quire_seq **seq, int32_t *n_exact) {
    *seq = NULL;
    *n_exact = 0;
    const candidate best = find_best(lane, choice);
    if (!best.seq || quire_seq_fork(best.seq, seq) != QUIRE_OK)
        return;
    if (best.prefix)
        best.prefix->used = ++lane->clock;
    if (quire_seq_trim(*seq, best.n) == QUIRE_OK) {
        *n_exact = best.n_exact;
        return;
    }
    quire_seq_free(*seq); /* a window has moved on */
    *seq = NULL;
}

bool srv_prefix_is_coming(const srv_lane *lane, const srv_choice *choice) {
    const int32_t now = find_best(lane, choice).n;
    for (int32_t j = 0; j < lane->n_running; j++) {
        const srv_choice *other = &lane->running[j]->choices[0];
        if (lane->running[j]->is_prompted || other->state != SRV_COMPUTING ||
            !may_share(choice, other->job->salt))
            continue;
        const int32_t n =
            common_tokens(choice->text, choice->n_text - 1, other->text, other->n_text);
        if (n - n % PAGE > now && n - n % PAGE > quire_seq_length(other->seq))
            return true;
    }
    return false;
}

/* ------------------------------------------------------------------ what is retained */

static void drop(srv_lane *lane, int32_t i) {
    quire_seq_free(lane->prefixes[i].seq);
    free(lane->prefixes[i].text);
    free(lane->prefixes[i].salt);
    lane->prefixes[i] = lane->prefixes[--lane->n_prefixes];
}

bool srv_prefix_evict(srv_lane *lane) {
    int32_t oldest = 0;
    for (int32_t i = 1; i < lane->n_prefixes; i++)
        if (lane->prefixes[i].used < lane->prefixes[oldest].used)
            oldest = i;
    if (lane->n_prefixes == 0)
        return false;
    drop(lane, oldest);
    return true;
}

/* Texts that this one begins with add nothing. With windows they do: a sequence cannot always be
 * cut back to them. */
static void drop_covered(srv_lane *lane, const srv_prefix *by) {
    for (int32_t i = lane->n_prefixes - 1; i >= 0 && lane->window == 0; i--) {
        const srv_prefix *p = &lane->prefixes[i];
        if (p->n_text <= by->n_text && strcmp(p->salt, by->salt) == 0 &&
            memcmp(p->text, by->text, (size_t)p->n_text * sizeof *p->text) == 0)
            drop(lane, i);
    }
}

void srv_prefix_add(srv_lane *lane, quire_seq *seq, const srv_choice *choice) {
    srv_prefix added = {.seq = seq,
                        .n_text = quire_seq_length(seq),
                        .n_exact = choice->n_exact,
                        .n_shared = choice->job->usage.cached_tokens,
                        .used = ++lane->clock};
    if (added.n_text >= PAGE && lane->max_prefixes > 0) { /* less than a page is not worth a slot */
        added.text = malloc((size_t)added.n_text * sizeof *added.text);
        added.salt = strdup(choice->job->salt);
    }
    if (!added.text || !added.salt) {
        free(added.text);
        free(added.salt);
        quire_seq_free(seq);
        return;
    }
    memcpy(added.text, choice->text, (size_t)added.n_text * sizeof *added.text);
    drop_covered(lane, &added);
    if (lane->n_prefixes == lane->max_prefixes)
        srv_prefix_evict(lane);
    lane->prefixes[lane->n_prefixes++] = added;
}
