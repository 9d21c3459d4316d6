/* quire_engine.h: GGUF models that run on a Quire cache. ggml computes, libllama has the
 * vocabulary, Quire keeps K/V.
 *
 * The life of a text
 *   quire_model_load        weights (mapped, not read), vocabulary
 *   quire_model_calibrate   measures K and q once per model, for codecs that need it (km4, km3)
 *   quire_session_create    a pool, a thread pool and compute buffers, all allocated once
 *   quire_session_prefill   a prompt into a sequence of the session's pool, chunk by chunk
 *   quire_session_decode    one step: new tokens of one or many sequences; logits of the rows
 *                           asked for
 *   quire_sampler_begin     the prompt, for penalties;  quire_sampler_next  logits -> token
 *   quire_model_piece       token -> bytes
 *   quire_generate          all of that in one call, for one sequence
 *
 * Caveats, before the functions
 * - Sequences are the pool's own: quire_seq_create(quire_session_pool(session), &seq), fork,
 *   trim, free as quire.h says. A token's position is its place in the sequence.
 * - Threads: a model may be used by many sessions at once. A session, a sampler and the
 *   sequences of a session are used by one thread at a time.
 * - Lifetime: a model outlives its sessions and samplers. Strings returned live as long as the
 *   object they came from.
 * - Results do not depend on the number of threads. They do not depend on how tokens are cut
 *   into steps either, as long as steps are exact: ggml rounds a product differently for some
 *   numbers of rows, so an exact step is padded to one for which it does not. Prefill always is;
 *   a lone row costs up to 1.8 times as much when padded.
 * - Errors are those of quire.h: a status, and quire_last_error() with the sentence. ggml and
 *   libllama are kept from printing: loading a model sets their log functions, which belong to
 *   the whole process.
 */
#ifndef QUIRE_ENGINE_H
#define QUIRE_ENGINE_H

#include "quire.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct quire_model quire_model;
typedef struct quire_session quire_session;
typedef struct quire_sampler quire_sampler;
typedef struct quire_calibration quire_calibration;

/* ------------------------------------------------------------------ model */

typedef struct quire_model_options {
    size_t struct_size; /* set by quire_model_options_default */
    /* Copy weights into the arrangement that ggml multiplies fastest here, where it has one;
     * default. Without, all stay in the mapped file: loading takes no time and no memory. */
    bool repack;
    /* Expand every weight to f32 (memory!): takes ggml's rounding of activations out of
     * comparisons. */
    bool f32_weights;
    /* Directory of what is measured once per model: its calibration, its sensitivity report and
     * the digest of its file (quire_model_identity). Created if it does not exist. NULL: nothing
     * is kept, and each is measured again by every call. */
    const char *cache_dir;
} quire_model_options;

typedef struct quire_model_info {
    const char *architecture; /* "llama" */
    const char *name;         /* as the file has it, or "" */
    const char *weight_type;  /* of most weights: "q4_1" */
    int32_t n_layers, n_embd, n_vocab;
    int32_t context; /* tokens it was trained on */
    uint64_t n_parameters;
    size_t weight_bytes;
    const quire_layer *layers; /* (n_layers) shapes and windows */
} quire_model_info;

QUIRE_API void quire_model_options_default(quire_model_options *options);
/* options NULL: the defaults. E_IO: cannot be read. E_MODEL: not a GGUF file, cut off, an
 * architecture Quire does not know, or a key or tensor that is missing or has the wrong shape;
 * quire_last_error() names it. E_NOMEM. */
QUIRE_API quire_status quire_model_load(quire_model **model, const char *path,
                                        const quire_model_options *options);
QUIRE_API void quire_model_free(quire_model *model); /* NULL is fine */
QUIRE_API void quire_model_get_info(const quire_model *model, quire_model_info *info);
/* The architectures that can run; NULL after the last. */
QUIRE_API const char *quire_architecture_at(size_t index);

/* ------------------------------------------------------------------ text */

typedef enum quire_tokenize_flags {
    QUIRE_TOKENIZE_PLAIN = 0,
    QUIRE_TOKENIZE_START =
        1, /* begin as the model wants a text to begin (BOS), if it does; never an end (EOS) */
    QUIRE_TOKENIZE_SPECIAL =
        2,                   /* "<|im_start|>" is the token of that name, not twelve characters */
    QUIRE_TOKENIZE_REPLY = 4 /* quire_model_tokenize_chat: add what starts the assistant's turn */
} quire_tokenize_flags;

/* Bytes that are no UTF-8 do no harm. E_TOO_BIG: more than `capacity` tokens; *n_tokens is then how
 * many. */
QUIRE_API quire_status quire_model_tokenize(const quire_model *model, const char *text,
                                            size_t n_bytes, int flags, int32_t *tokens,
                                            int32_t capacity, int32_t *n_tokens);
/* The bytes of a token: may be a part of a UTF-8 character. Control tokens have none. E_TOO_BIG,
 * E_INVALID. */
QUIRE_API quire_status quire_model_piece(const quire_model *model, int32_t token, char *bytes,
                                         size_t capacity, size_t *n_bytes);
QUIRE_API bool quire_model_ends_text(const quire_model *model,
                                     int32_t token); /* end of text, or of a turn */

typedef struct quire_message {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
} quire_message;

/* Whether the model brings a chat template that is known. */
QUIRE_API bool quire_model_can_chat(const quire_model *model);
/* The tokens of a conversation, as the model's template writes it down. flags: START and REPLY.
 * Only the template's own text becomes control tokens: a message that says "<|im_end|>" holds these
 * ten characters, whoever wrote it. The tokens of other messages are those of the template's text
 * as a whole, with SPECIAL. Also used by `quire run --chat`, `chat` and `eval agree --chat`.
 * E_TOO_BIG: *n_tokens is how many. E_INVALID: a role that is none of the three. E_UNSUPPORTED: no
 * known template, or one that does more to a message than trimming it. */
QUIRE_API quire_status quire_model_tokenize_chat(const quire_model *model,
                                                 const quire_message *messages, size_t n_messages,
                                                 int flags, int32_t *tokens, int32_t capacity,
                                                 int32_t *n_tokens);

/* ------------------------------------------------------------------ calibration */

typedef struct quire_calibration_options {
    size_t struct_size; /* set by quire_calibration_options_default */
    int32_t n_threads;  /* default 1 */
    void (*on_progress)(void *user, int32_t done, int32_t total); /* tokens; not called if the
                                                                     cache_dir has the result */
    bool (*stop)(void *user);                                     /* true ends it with E_ABORTED */
    void *user;
} quire_calibration_options;

QUIRE_API void quire_calibration_options_default(quire_calibration_options *options);
/* Which channels of K matter most, and how their rounding errors are passed on (quire.h,
 * quire_layer.k_order and k_feedback): what a cache with codecs km4 or km3 needs. Measured on a
 * built-in text of 512 tokens, and cached in the model's cache_dir. The result is a value: it does
 * not depend on the number of threads, may be used by any number of sessions, and outlives the
 * model. E_INVALID, E_ABORTED, E_NOMEM. */
QUIRE_API quire_status quire_model_calibrate(const quire_model *model,
                                             const quire_calibration_options *options,
                                             quire_calibration **calibration);
QUIRE_API void quire_calibration_free(quire_calibration *calibration); /* NULL is fine */
/* Writes it to a file that quire_calibration_file_read reads (quire.h). E_INVALID: of another
 * model. E_IO, E_NOMEM. */
QUIRE_API quire_status quire_calibration_write(const quire_calibration *calibration,
                                               const quire_model *model, const char *path);

/* ------------------------------------------------------------------ session */

typedef struct quire_session_options {
    size_t struct_size; /* set by quire_session_options_default */
    quire_policy policy;
    quire_type raw;     /* of open pages; f16 */
    int32_t context;    /* tokens of one sequence; 0: as many as the model was trained on */
    int32_t max_seqs;   /* default 1 */
    int32_t max_rows;   /* of one step, a multiple of 64: also the chunk of prefill; default 512 */
    int32_t max_logits; /* rows of one step that may have logits; default 64 */
    int32_t n_threads;  /* default 1 */
    int32_t max_kv, keep; /* max_kv 0: none; else full-attention layers hold the first `keep` and
                             the last max_kv - keep tokens, packed like the others */
    const quire_pair *layers;      /* (n_layers) NULL: as the policy says; else pairs,
                                      QUIRE_CODEC_DEFAULT: as the policy */
    const quire_layer *order_from; /* (n_layers) NULL: the orders of channels of `calibration`;
                                      else the k_order of these layers, where they have one: those
                                      of a saved file, whose cache is to be loaded */
    const quire_calibration *calibration; /* needed by km4 and km3 (quire_model_calibrate), NULL
                                             otherwise; copied */
    bool plain_rounding; /* km4, km3: round every channel of K by itself, without feedback */
    size_t kv_bytes; /* budget of the pool; 0: enough for max_seqs sequences of `context` tokens */
    bool exact_trim; /* as quire_pool_options has it; default */
    bool (*stop)(void *user); /* asked between operations; true ends the step with E_ABORTED */
    void *stop_user;
} quire_session_options;

QUIRE_API void quire_session_options_default(quire_session_options *options);
/* Whether a session with these options needs a calibration. */
QUIRE_API bool quire_session_needs_calibration(const quire_model *model,
                                               const quire_session_options *options);
/* Everything the options point to is copied. E_INVALID: an option out of range, or a calibration
 * that is missing or of another model; E_BUDGET, E_TOO_BIG, E_UNSUPPORTED, E_NOMEM. */
QUIRE_API quire_status quire_session_create(quire_session **session, const quire_model *model,
                                            const quire_session_options *options);
QUIRE_API void quire_session_free(quire_session *session); /* NULL is fine */
QUIRE_API quire_pool *quire_session_pool(const quire_session *session);
QUIRE_API const quire_model *quire_session_model(const quire_session *session);
/* The model's layers with what the options changed: windows, codecs. */
QUIRE_API const quire_layer *quire_session_layers(const quire_session *session);
QUIRE_API int32_t quire_session_context(const quire_session *session);
/* Everything but the pool and the weights. */
QUIRE_API size_t quire_session_compute_bytes(const quire_session *session);

typedef struct quire_step_item {
    quire_seq *seq;
    const int32_t *tokens; /* (n_tokens) */
    int32_t n_tokens;
    int32_t n_logits; /* the last n_logits rows get logits */
} quire_step_item;

/* Computes a step and leaves it open: look at the logits, then commit or abort. E_INVALID,
 * E_VALUE, E_NO_PAGES, E_TOO_BIG, E_ABORTED: nothing happened, no step is open. */
QUIRE_API quire_status quire_session_eval(quire_session *session, const quire_step_item *items,
                                          size_t n_items, bool exact);
/* n_accept NULL: all; else item i keeps its first n_accept[i] tokens, as quire_batch_commit says.
 */
QUIRE_API quire_status quire_session_commit(quire_session *session, const int32_t *n_accept);
QUIRE_API void quire_session_abort(quire_session *session); /* no open step is fine */
/* quire_session_eval and quire_session_commit. */
QUIRE_API quire_status quire_session_decode(quire_session *session, const quire_step_item *items,
                                            size_t n_items, bool exact);
/* Appends a prompt in steps that end at multiples of max_rows. Logits of the last token are row
 * 0 afterwards. progress: NULL, or told after every step. On an error the sequence holds the
 * steps before it. */
QUIRE_API quire_status quire_session_prefill(quire_session *session, quire_seq *seq,
                                             const int32_t *tokens, int32_t n_tokens,
                                             void (*progress)(void *user, int32_t done),
                                             void *user);
/* ---- prefix reuse */

struct quire_store; /* quire_store.h */

typedef struct quire_prompt_options {
    size_t struct_size;        /* set by quire_prompt_options_default */
    const int32_t *held;       /* (n_held) the tokens of *seq, if there is a live sequence */
    int32_t n_held;            /* quire_seq_length(*seq) */
    bool exact;                /* cut a live sequence only where the result is that of a cold run:
                                  up to 63 tokens more are computed */
    struct quire_store *store; /* NULL: none */
    void (*on_progress)(void *user, int32_t done, int32_t total); /* tokens to compute */
    /* Pages could not be put, for another reason than before; quire_last_error() gives it. again:
     * the next put tries again; else this text puts no more pages. */
    void (*on_store_error)(void *user, quire_status status, bool again);
    void *user;
} quire_prompt_options;

typedef struct quire_prompt_result {
    int32_t n_reused;     /* tokens that were not computed: of the live sequence, or.. */
    int32_t n_from_store; /* ..from the store */
    int32_t n_computed;   /* prefilled, in.. */
    double seconds;
    int32_t pages_added; /* to the store */
    uint64_t bytes_added;
    quire_status store_status; /* of the last use of the store */
    bool is_shareable;         /* the sequence has only tokens of the store and of prefill, so that
                                  its pages may be put */
} quire_prompt_result;

QUIRE_API void quire_prompt_options_default(quire_prompt_options *options);
/* Turns a prompt into a sequence. The longest prefix that is already computed is mapped: that of
 * the live sequence *seq if it has one (it is cut, or freed if it has none), else that of the
 * store. The rest is prefilled, and its pages are put into the store after each step, which is no
 * longer than the shortest window. Logits of the last token are row 0 afterwards. Pages behind a
 * live prefix are not put: it may hold tokens that were decoded one at a time.
 * A put that fails does not end the prompt. E_INVALID, E_STATE, E_TOO_BIG, E_UNSUPPORTED (a store,
 * and an engine without one): *seq is as it was. A failing quire_store_get or quire_seq_create:
 * *seq is NULL. Any other error: *seq holds the steps before it. *result is filled also then. */
QUIRE_API quire_status quire_session_prompt(quire_session *session, quire_seq **seq,
                                            const int32_t *tokens, int32_t n_tokens,
                                            const quire_prompt_options *options,
                                            quire_prompt_result *result);
/* Puts the pages of these tokens, from the first on, into options->store and adds to the result of
 * quire_session_prompt: what was generated in exact steps, or what could not be put before. Does
 * nothing without a store, for a sequence that is not shareable, or after a failure that lasts. */
QUIRE_API quire_status quire_session_put(quire_session *session, const quire_seq *seq,
                                         const int32_t *tokens, int32_t n_tokens,
                                         const quire_prompt_options *options,
                                         quire_prompt_result *result);

/* quire_seq_shift with the model's own rotation: drops tokens from .. to-1. E_UNSUPPORTED also
 * for models with YaRN. */
QUIRE_API quire_status quire_session_shift(quire_session *session, quire_seq *seq, int32_t from,
                                           int32_t to);
/* (n_vocab) of the row'th row with logits of the last step, in item order; NULL if there is
 * none. Until the next step. */
QUIRE_API const float *quire_session_logits(const quire_session *session, int32_t row);

/* ------------------------------------------------------------------ comparing */

typedef struct quire_divergence {
    double kld; /* of the second from the first, in nats */
    double nll,
        nll_base; /* -ln of the probability of the true token, by the second and by the first */
    bool same_top;
} quire_divergence;

/* How far two predictions of the next token are apart; base, other: (n_vocab) logits. */
QUIRE_API quire_divergence quire_logits_compare(const float *base, const float *other,
                                                int32_t n_vocab, int32_t truth);
/* -ln of the probability of a token. */
QUIRE_API double quire_logits_nll(const float *logits, int32_t n_vocab, int32_t token);

/* ------------------------------------------------------- sensitivity: which codecs suit a model */

enum { QUIRE_RUNGS_MAX = 8 };

/* Of one layer over a built-in text. "First" are its first four tokens, which presets keep raw;
 * other figures are without them. K as it is stored, after RoPE. A layer that shares another's
 * cache has `sink` alone. */
typedef struct quire_layer_sensitivity {
    double k_norm, v_norm;   /* mean length of a row */
    double k_first, v_first; /* that of the first tokens, over it */
    double k_outlier; /* widest channel of K over the median channel's range, in the head where it
                         is largest */
    double k_bias;    /* the channel of K whose mean is largest over its standard deviation: by how
                         much */
    double k_kurtosis,
        v_kurtosis; /* of a channel of K over tokens; of a row of V over channels. Normal: 3 */
    double sink;    /* share of attention that goes to the first tokens */
    double kld;   /* of the next token if this layer alone is packed, as quire_sensitivity.alone */
    double share; /* that, over the sum of all layers */
    int32_t
        n_outliers; /* channels of K with more than three times the median range of their head */
} quire_layer_sensitivity;

typedef struct quire_rung {
    quire_pair pair;
    double kld; /* of the next token if all layers are packed so */
} quire_rung;

typedef struct quire_sensitivity {
    int32_t n_layers, n_tokens,
        n_scored; /* tokens of the text, and those whose prediction was compared */
    int32_t n_rungs;
    quire_pair alone;
    quire_rung rungs[QUIRE_RUNGS_MAX];     /* (n_rungs) from raw:raw to the fewest bits, those that
                                              serve all layers */
    const quire_layer_sensitivity *layers; /* (n_layers) a part of the report: no free of its own */
} quire_sensitivity;

typedef struct quire_sensitivity_options {
    size_t struct_size; /* set by quire_sensitivity_options_default */
    int32_t n_threads;  /* default 1 */
    bool again;         /* measure even if the cache_dir has a report */
    void (*on_progress)(void *user, int32_t done, int32_t total);
    bool (*stop)(void *user); /* true ends it with E_ABORTED */
    void *user;
} quire_sensitivity_options;

QUIRE_API void quire_sensitivity_options_default(quire_sensitivity_options *options);
/* Measures a model on a built-in text, which runs once per layer, once per rung and once on the raw
 * cache; takes minutes. The report is cached in the model's cache_dir. Weights are expanded to f32
 * one matrix at a time, as rounded activations would hide the loss of codecs. The result does not
 * depend on the number of threads. free() the report. E_UNSUPPORTED: the model's context is too
 * short. E_ABORTED, E_NOMEM, E_IO. */
QUIRE_API quire_status quire_model_sensitivity(const quire_model *model,
                                               const quire_sensitivity_options *options,
                                               quire_sensitivity **report);

typedef struct quire_choice_options {
    size_t struct_size; /* set by quire_choice_options_default */
    size_t bytes;       /* the most that one sequence may hold; 0: no limit */
    double kld;         /* the most that may be predicted; default: no limit */
    bool windowed; /* pack layers with a sliding window too, which are small and stay raw otherwise
                    */
    int32_t context; /* tokens; 0: as many as the model was trained on */
    int32_t max_kv, keep,
        sinks; /* from here on as quire_session_options and quire_policy have them; sinks 4, f16 */
    quire_type raw;
    bool exact_trim;
} quire_choice_options;

typedef struct quire_choice {
    size_t bytes, raw_bytes; /* of one sequence of `context` tokens: as chosen, and all raw */
    double kld;              /* predicted */
} quire_choice;

QUIRE_API void quire_choice_options_default(quire_choice_options *options);
/* The pairs of all layers for quire_session_options.layers: from raw:raw down, always the step
 * that costs least KLD for the bytes it saves; until `bytes` holds, or as far as `kld` allows. A
 * layer's loss on a rung is predicted as its share of the rung's, the measured share pulled half
 * way to an even one. E_BUDGET: no choice fits; the message gives the minimum.
 * E_INVALID. */
QUIRE_API quire_status quire_choose_codecs(const quire_model *model,
                                           const quire_sensitivity *report,
                                           const quire_choice_options *options, quire_pair *pairs,
                                           quire_choice *choice);

/* ---- saved sequences Files as quire.h says, with the model's identity in them: a cache is never
 * restored into another model. */

/* What a cache of this model belongs to: lines of text, "weights 0123..". From the bytes of the
 * whole file, not from its name. The file is read at the first call; with a cache_dir the result
 * is kept there, and read again only after the file has changed. It covers tensors and their
 * data, the vocabulary, and every number of the architecture, RoPE and windows included; not
 * general.* nor the chat template. Lives as long as the model. E_IO, E_NOMEM. */
QUIRE_API quire_status quire_model_identity(const quire_model *model, const char **text);
/* The same, and how this session computes: what the weights are expanded to, how K is rounded.
 * With it in quire_store_text.identity a store gives the bytes that a cold run would compute, on
 * machines and builds that compute alike. Lives as long as the session. */
QUIRE_API quire_status quire_session_identity(quire_session *session, const char **text);
/* `tokens` are all that the sequence holds, and any that are to follow: the last one generated,
 * if you like. */
QUIRE_API quire_status quire_session_save(const quire_session *session, const quire_seq *seq,
                                          const char *path, const int32_t *tokens,
                                          int32_t n_tokens);
/* A new sequence from an open file; its tokens are in quire_file_get_info. reseal: as
 * quire_load_options has it. E_IDENTITY: quire_last_error() says whether weights, vocabulary or
 * architecture differ. E_TOO_BIG: longer than the context. E_FORMAT: the file has no tokens, or
 * some that the model does not know. Else as quire_seq_load. */
QUIRE_API quire_status quire_session_load(quire_session *session, quire_file *file, bool reseal,
                                          quire_seq **seq);

/* ------------------------------------------------------------------ sampling */

/* How tokens are chosen. The samplers are libllama's, the defaults those of llama.cpp's programs,
 * in this order: grammar, penalties, DRY, top_k, top_p, min_p, temp. Penalties and DRY look back at
 * the prompt too. */
typedef struct quire_sampler_options {
    size_t struct_size;  /* set by quire_sampler_options_default */
    float temp;          /* 0: the likeliest token; default 0.8 */
    int32_t top_k;       /* 0: off; default 40 */
    float top_p;         /* 1: off; default 0.95 */
    float min_p;         /* 0: off; default 0.05 */
    uint32_t seed;       /* default 1 */
    const char *grammar; /* NULL, or GBNF whose rule `root` the text must follow; borrowed during
                            the call */
    /* Against repetition: for tokens that are among the last penalty_last_n. */
    int32_t penalty_last_n; /* 0: off; default 64 */
    float repeat_penalty; /* > 0; positive logits are divided by it, others multiplied; 1: off, the
                             default */
    float frequency_penalty; /* taken off the logit for each time the token is there; 0: off, the
                                default */
    float presence_penalty;  /* taken off once; 0: off, the default */
    /* DRY: a token that would go on with a repetition of n >= dry_allowed_length tokens loses
     * dry_multiplier * dry_base ^ (n - dry_allowed_length). */
    float dry_multiplier;       /* 0: off, the default */
    float dry_base;             /* >= 1; default 1.75 */
    int32_t dry_allowed_length; /* default 2 */
    int32_t dry_last_n;         /* tokens in which repetitions are sought; 0: off; default 64 */
    const char *const *dry_breakers; /* (n_dry_breakers) no repetition goes beyond these texts, of
                                        at most 40 bytes; */
    size_t n_dry_breakers;           /* borrowed during the call; default "\n", ":", "\"", "*" */
} quire_sampler_options;

QUIRE_API void quire_sampler_options_default(quire_sampler_options *options);
/* E_INVALID: a value out of range, or the grammar; quire_last_error() names it. */
QUIRE_API quire_status quire_sampler_create(quire_sampler **sampler, const quire_model *model,
                                            const quire_sampler_options *options);
QUIRE_API void quire_sampler_free(quire_sampler *sampler); /* NULL is fine */
/* Penalties and DRY forget what they saw and look back at these tokens, the prompt. A grammar does
 * not see them. quire_generate does it. */
QUIRE_API void quire_sampler_begin(quire_sampler *sampler, const int32_t *tokens, int32_t n_tokens);
/* Chooses a token and takes note of it. */
QUIRE_API quire_status quire_sampler_next(quire_sampler *sampler, const float *logits,
                                          int32_t *token);

/* ------------------------------------------------------------------ generation */

typedef struct quire_generate_options {
    size_t struct_size; /* set by quire_generate_options_default */
    int32_t max_tokens; /* default 128 */
    bool exact;         /* exact steps in decoding too */
    bool ignore_end;    /* go on after the end of the text */
    int32_t n_cached; /* the sequence holds the first n_cached tokens of the prompt already; default
                         0. All of them: after quire_session_prompt, whose logits are used */
    bool resume;      /* the one token after those came out of an earlier call: it is decoded, as it
                         would have been      then, and not prefilled */
    int32_t draft;    /* 0: off; else up to this many tokens are looked up in the text so far and
                         verified in one step */
    /* Called with every token, the one that ends the text included, after its step was committed.
     * False stops. */
    bool (*on_token)(void *user, int32_t token, const char *bytes, size_t n_bytes);
    void (*on_prefill)(void *user, int32_t done);
    void *user;
} quire_generate_options;

typedef struct quire_generate_result {
    int32_t n_prompt, n_generated; /* n_prompt: prefilled */
    double prefill_seconds, decode_seconds;
    int32_t n_drafted, n_accepted; /* draft tokens tried, and found right */
    bool ended; /* by the model, not by max_tokens, the callback or the context */
} quire_generate_result;

QUIRE_API void quire_generate_options_default(quire_generate_options *options);
/* Appends what is not cached of the prompt to `seq` and continues it. Every
 * token whose successor was computed is in the sequence at the end: all but the last one
 * generated. *result is filled also on failure. */
QUIRE_API quire_status quire_generate(quire_session *session, quire_seq *seq,
                                      quire_sampler *sampler, const int32_t *prompt,
                                      int32_t n_prompt, const quire_generate_options *options,
                                      quire_generate_result *result);

#ifdef __cplusplus
}
#endif
#endif
