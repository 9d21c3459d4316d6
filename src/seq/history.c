/* Records operations after which a sequence differs from a fresh computation of its tokens.
 *
 * A model's rows depend on what its queries saw. So if a row is replaced by an approximation of
 * itself, or was computed while older rows had another form, that token and all after it differ
 * from a fresh computation; all tokens before it do not. It is enough to record the first such
 * token, and a trim that removes it makes the sequence exact again. */
#include "seq/seq.h"

const char *quire_history_name(quire_history one) {
    switch (one) {
    case QUIRE_HISTORY_TRIMMED:
        return "trimmed";
    case QUIRE_HISTORY_REQUANTIZED:
        return "requantized";
    case QUIRE_HISTORY_RESEALED:
        return "resealed";
    case QUIRE_HISTORY_SHIFTED:
        return "shifted";
    default:
        return NULL;
    }
}

void quire__history_note(quire_seq *seq, quire_history what, int32_t token) {
    seq->history |= (uint32_t)what;
    if (token < seq->exact)
        seq->exact = token;
}

void quire__history_cut(quire_seq *seq) {
    if (seq->length > seq->exact)
        return;
    seq->history = 0;
    seq->exact = INT32_MAX;
}

int32_t quire__history_exact(const quire_seq *seq) {
    return seq->exact < seq->length ? seq->exact : seq->length;
}

uint32_t quire_seq_history(const quire_seq *seq, int32_t *exact_tokens) {
    if (exact_tokens)
        *exact_tokens = 0;
    if (!seq)
        return 0;
    pthread_mutex_lock(&seq->pool->lock); /* another thread may be changing the policy */
    const uint32_t history = seq->history;
    if (exact_tokens)
        *exact_tokens = quire__history_exact(seq);
    pthread_mutex_unlock(&seq->pool->lock);
    return history;
}
