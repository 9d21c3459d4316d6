/* quire_engine.h: runs GGUF models on a Quire cache. ggml computes, libllama provides the
 * vocabulary, Quire holds K and V.
 *
 * The calls, in order of use
 *   quire_model_load        maps the weights, copies those that ggml multiplies faster in another
 *                           layout (`repack`), and loads the vocabulary
 *   quire_model_calibrate   measures K and q once per model, for codecs that need it (km4, km3)
 *   quire_session_create    allocates a pool, a thread pool and compute buffers, once
 *   quire_session_prefill   appends a prompt to a sequence of the session's pool, in chunks
 *   quire_session_decode    one step: computes new tokens of one or more sequences, and the logits
 *                           of the rows that ask for them
 *   quire_sampler_begin     shows the prompt to the penalties
 *   quire_sampler_next      logits -> token
 *   quire_model_piece       token -> bytes
 *   quire_generate          all of that in one call, for one sequence
 *
 * Rules
 * - Sequences belong to the session's pool: quire_seq_create(quire_session_pool(session), &seq);
 *   fork, trim and free them as in quire.h. A token's position is its index in the sequence.
 * - Threads: a model may be used by many sessions at once. A session, a sampler and the
 *   sequences of a session are used by one thread at a time.
 * - Lifetime: free a model after its sessions and samplers. Returned strings live as long as the
 *   object that returned them.
 * - Results do not depend on the number of threads. Results of exact steps do not depend on how
 *   tokens are split into steps either: ggml rounds a product differently for some numbers of rows,
 *   so an exact step is padded to a number of rows for which it does not. Prefill is always exact.
 *   An exact step of one row takes 1.3 to 5 times as long (docs/SERVER.md).
 * - Errors are those of quire.h: a status, and a sentence in quire_last_error(). Loading a model
 *   silences ggml and libllama: it sets their log functions, for the whole process.
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
    /* Copy weights into the layout that ggml multiplies fastest on this CPU, where it has one; on
     * by default. Off: all weights stay in the mapped file, so loading costs no time or memory. */
    bool repack;
    /* Expand every weight to f32. Needs much memory, and keeps ggml's rounding of activations out
     * of comparisons. */
    bool f32_weights;
    /* Directory for what is measured once per model: its calibration, its sensitivity report and
     * the digest of its file (quire_model_identity). Created if it does not exist. NULL: nothing
     * is cached, and every call measures again. */
    const char *cache_dir;
} quire_model_options;

typedef struct quire_model_info {
    const char *architecture; /* "llama" */
    const char *name;         /* from the file, or "" */
    const char *weight_type;  /* of most weights: "q4_1" */
    int32_t n_layers, n_embd, n_vocab;
    int32_t context; /* tokens; what the model was trained with */
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
    /* Begin with BOS if the model's texts do. EOS is never added. */
    QUIRE_TOKENIZE_START = 1,
    /* Read "<|im_start|>" as the token of that name, not as twelve characters. */
    QUIRE_TOKENIZE_SPECIAL = 2,
    /* quire_model_tokenize_chat: end with what starts the assistant's turn. */
    QUIRE_TOKENIZE_REPLY = 4
} quire_tokenize_flags;

/* The text need not be valid UTF-8. E_TOO_BIG: there are more than `capacity` tokens; *n_tokens is
 * the number. */
QUIRE_API quire_status quire_model_tokenize(const quire_model *model, const char *text,
                                            size_t n_bytes, int flags, int32_t *tokens,
                                            int32_t capacity, int32_t *n_tokens);
/* The bytes of a token, which may be part of a UTF-8 character. Control tokens have none.
 * E_TOO_BIG, E_INVALID. */
QUIRE_API quire_status quire_model_piece(const quire_model *model, int32_t token, char *bytes,
                                         size_t capacity, size_t *n_bytes);
/* Whether the token ends a text or a turn. */
QUIRE_API bool quire_model_ends_text(const quire_model *model, int32_t token);

typedef struct quire_message {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
} quire_message;

/* Whether the model has a chat template that libllama knows. */
QUIRE_API bool quire_model_can_chat(const quire_model *model);
/* The tokens of a conversation in the model's chat template. flags: START and REPLY.
 * Only the template's own text becomes control tokens: "<|im_end|>" in a message is ten characters,
 * whoever wrote it. Messages without such text get the tokens that SPECIAL gives the template's
 * whole output. E_TOO_BIG: *n_tokens is the number. E_INVALID: a role that is none of the three.
 * E_UNSUPPORTED: no known template, or one that does more to a message than trim it. */
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
/* Measures which channels of K matter most and how their rounding errors spread to others
 * (quire_layer.k_order and k_feedback in quire.h), which the codecs km4 and km3 need. Runs a
 * built-in text of 512 tokens; the result is cached in the model's cache_dir. It does not depend on
 * the number of threads, serves any number of sessions, and may outlive the model. E_INVALID,
 * E_ABORTED, E_NOMEM. */
QUIRE_API quire_status quire_model_calibrate(const quire_model *model,
                                             const quire_calibration_options *options,
                                             quire_calibration **calibration);
QUIRE_API void quire_calibration_free(quire_calibration *calibration); /* NULL is fine */
/* Writes the calibration to a file for quire_calibration_file_read (quire.h). E_INVALID: it belongs
 * to another model. E_IO, E_NOMEM. */
QUIRE_API quire_status quire_calibration_write(const quire_calibration *calibration,
                                               const quire_model *model, const char *path);

/* ------------------------------------------------------------------ session */

typedef struct quire_session_options {
    size_t struct_size; /* set by quire_session_options_default */
    quire_policy policy;
    quire_type raw;     /* of open pages; f16 */
    int32_t context;    /* tokens of one sequence; 0: what the model was trained with */
    int32_t max_seqs;   /* default 1 */
    int32_t max_rows;   /* of one step, and of a chunk of prefill; a multiple of 64; default 512 */
    int32_t max_logits; /* rows of one step that may have logits; default 64 */
    int32_t n_threads;  /* default 1 */
    /* A bounded cache: full-attention layers hold the first `keep` tokens and the last
     * max_kv - keep, packed like the others. max_kv 0: no bound. */
    int32_t max_kv, keep;
    /* (n_layers) Codecs by layer; QUIRE_CODEC_DEFAULT, or NULL for all: those of the policy. */
    const quire_pair *layers;
    /* (n_layers) Take the channel orders of K from these layers, where they have one, and not from
     * `calibration`: needed to load the pages of a saved file unchanged. NULL: none. */
    const quire_layer *order_from;
    /* From quire_model_calibrate; needed by km4 and km3, else NULL. */
    const quire_calibration *calibration;
    bool plain_rounding; /* km4, km3: round each channel of K on its own, without error feedback */
    size_t kv_bytes; /* budget of the pool; 0: enough for full_seqs sequences of `context` tokens */
    int32_t full_seqs; /* 0: all max_seqs */
    bool exact_trim;   /* as in quire_pool_options; on by default */
    /* Called between operations of a step; true ends the step with E_ABORTED. */
    bool (*stop)(void *user);
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
/* The layers as this session has them: the model's, with the options' windows and codecs. */
QUIRE_API const quire_layer *quire_session_layers(const quire_session *session);
QUIRE_API int32_t quire_session_context(const quire_session *session);
/* Memory of the session apart from the pool and the weights. */
QUIRE_API size_t quire_session_compute_bytes(const quire_session *session);

typedef struct quire_step_item {
    quire_seq *seq;
    const int32_t *tokens; /* (n_tokens) */
    int32_t n_tokens;
    int32_t n_logits; /* the last n_logits rows get logits */
} quire_step_item;

/* Computes a step and leaves it open: read the logits, then commit or abort. E_INVALID, E_VALUE,
 * E_NO_PAGES, E_TOO_BIG, E_ABORTED: nothing has changed, and no step is open. */
QUIRE_API quire_status quire_session_eval(quire_session *session, const quire_step_item *items,
                                          size_t n_items, bool exact);
/* n_accept: item i adds its first n_accept[i] tokens (quire_batch_commit); NULL: all of them. */
QUIRE_API quire_status quire_session_commit(quire_session *session, const int32_t *n_accept);
/* Without an open step nothing happens. */
QUIRE_API void quire_session_abort(quire_session *session);
/* quire_session_eval and quire_session_commit. */
QUIRE_API quire_status quire_session_decode(quire_session *session, const quire_step_item *items,
                                            size_t n_items, bool exact);
/* Appends a prompt in steps that end at multiples of max_rows. The logits of the last token are
 * row 0 afterwards. progress: NULL, or called after every step. On an error the sequence holds the
 * steps that succeeded. */
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
    bool exact;                /* cut a live sequence only where the result equals a cold run's; up
                                  to 63 more tokens are computed */
    struct quire_store *store; /* NULL: none */
    const void *store_salt;    /* as quire_store_text.salt */
    size_t store_salt_bytes;   /* 0: none */
    void (*on_progress)(void *user, int32_t done, int32_t total); /* tokens to compute */
    /* Called when pages cannot be put, once per reason; quire_last_error() gives it. again: the
     * next put tries again; otherwise no more pages of this text are put. */
    void (*on_store_error)(void *user, quire_status status, bool again);
    void *user;
} quire_prompt_options;

typedef struct quire_prompt_result {
    int32_t n_reused;     /* tokens that were not computed again */
    int32_t n_from_store; /* how many of these came from the store, not from a live sequence */
    int32_t n_computed;   /* tokens that were prefilled */
    double seconds;       /* of prefill */
    int32_t pages_added;  /* to the store */
    uint64_t bytes_added;
    quire_status store_status; /* of the last access to the store */
    bool is_shareable; /* every token came from the store or from prefill, so pages may be put */
} quire_prompt_result;

QUIRE_API void quire_prompt_options_default(quire_prompt_options *options);
/* Turns a prompt into a sequence, and computes only what is new. The live sequence *seq is cut to
 * the prefix that it shares with the prompt. If the store gives a longer one (or there is none),
 * that takes its place; with room for only one of them it is freed first. The rest is prefilled.
 * After each step, which is no longer than quire_session_put_rows, its pages are put into the
 * store; pages after a live prefix are not, as that prefix may hold tokens that were decoded one at
 * a time. The logits of the last token are row 0 afterwards. A put that fails does not fail the
 * prompt. E_INVALID, E_STATE, E_TOO_BIG, E_UNSUPPORTED (a store was given to an engine built
 * without one): *seq is unchanged. If quire_store_get or quire_seq_create fails, and no live prefix
 * is left, *seq is NULL. After any other error *seq holds the steps that succeeded. *result is
 * filled in every case. */
QUIRE_API quire_status quire_session_prompt(quire_session *session, quire_seq **seq,
                                            const int32_t *tokens, int32_t n_tokens,
                                            const quire_prompt_options *options,
                                            quire_prompt_result *result);
/* The first half of quire_session_prompt: reuses the prefix and prefills nothing, for callers that
 * compute prompts in steps of their own. At least one token is left to compute. Errors and *seq as
 * above. */
QUIRE_API quire_status quire_session_reuse(quire_session *session, quire_seq **seq,
                                           const int32_t *tokens, int32_t n_tokens,
                                           const quire_prompt_options *options,
                                           quire_prompt_result *result);
/* How many rows may be computed between two puts: pages leave a sliding window with its tokens, and
 * must be put before that. A multiple of 64; INT32_MAX / 64 * 64 without windows. */
QUIRE_API int32_t quire_session_put_rows(const quire_session *session);
/* Puts the pages of these tokens, the first n_tokens of the sequence, into options->store, and adds
 * the counts to the result of quire_session_prompt. For tokens that were generated in exact steps,
 * and for pages that could not be put before. Does nothing without a store, for a sequence that is
 * not shareable, or after a failure that is permanent. */
QUIRE_API quire_status quire_session_put(quire_session *session, const quire_seq *seq,
                                         const int32_t *tokens, int32_t n_tokens,
                                         const quire_prompt_options *options,
                                         quire_prompt_result *result);

/* quire_seq_shift with the model's own RoPE: drops tokens from .. to-1. E_UNSUPPORTED also for
 * models with YaRN. */
QUIRE_API quire_status quire_session_shift(quire_session *session, quire_seq *seq, int32_t from,
                                           int32_t to);
/* (n_vocab) The logits of the last step. row counts the rows that asked for logits, in the order of
 * the items; NULL: there is no such row. Valid until the next step. */
QUIRE_API const float *quire_session_logits(const quire_session *session, int32_t row);

/* ------------------------------------------------------------------ comparing */

typedef struct quire_divergence {
    double kld;           /* of `other` from `base`, in nats */
    double nll, nll_base; /* -ln of the true token's probability, by `other` and by `base` */
    bool same_top;        /* both have the same likeliest token */
} quire_divergence;

/* Compares two predictions of the next token, which was `truth`; base, other: (n_vocab) logits. */
QUIRE_API quire_divergence quire_logits_compare(const float *base, const float *other,
                                                int32_t n_vocab, int32_t truth);
/* -ln of the probability of a token. */
QUIRE_API double quire_logits_nll(const float *logits, int32_t n_vocab, int32_t token);

/* ------------------------------------------------------- sensitivity: which codecs suit a model */

enum { QUIRE_RUNGS_MAX = 8 };

/* One layer on a built-in text. "First" means the first four tokens, which presets keep raw; all
 * other figures leave them out. K is taken as it is cached, after RoPE. A layer that shares
 * another's cache has only `sink`. */
typedef struct quire_layer_sensitivity {
    double k_norm, v_norm;   /* mean length of a row */
    double k_first, v_first; /* mean length of the first rows, relative to k_norm and v_norm */
    double k_outlier;  /* widest range of a channel of K / the median range of its head: largest */
    double k_bias;     /* |mean| / standard deviation of a channel of K: the largest */
    double k_kurtosis; /* of a channel of K over tokens; 3 for a normal distribution */
    double v_kurtosis; /* of a row of V over channels; likewise */
    double sink;       /* share of attention that goes to the first tokens */
    double kld;   /* of the next token if only this layer is packed, with quire_sensitivity.alone */
    double share; /* kld / its sum over all layers */
    int32_t n_outliers; /* channels of K whose range exceeds three times the median of their head */
} quire_layer_sensitivity;

typedef struct quire_rung {
    quire_pair pair;
    double kld; /* of the next token if all layers are packed with this pair */
} quire_rung;

typedef struct quire_sensitivity {
    int32_t n_layers;
    int32_t n_tokens, n_scored; /* of the text; those whose prediction was compared */
    int32_t n_rungs;
    quire_pair alone;                      /* the pair with which single layers were packed */
    quire_rung rungs[QUIRE_RUNGS_MAX];     /* (n_rungs) pairs that serve all layers, from raw:raw
                                              down to the fewest bits */
    const quire_layer_sensitivity *layers; /* (n_layers) freed with the report */
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
    size_t bytes;       /* limit for one sequence; 0: none */
    double kld;         /* limit for the predicted KLD; default: none */
    bool windowed;      /* pack sliding-window layers too; they are small, and raw otherwise */
    int32_t context;    /* tokens; 0: what the model was trained with */
    /* As in quire_session_options and quire_policy; defaults: no bound, 4 sinks, f16. */
    int32_t max_kv, keep, sinks;
    quire_type raw;
    bool exact_trim;
} quire_choice_options;

typedef struct quire_choice {
    size_t bytes, raw_bytes; /* of one sequence of `context` tokens: as chosen, and all raw */
    double kld;              /* predicted */
} quire_choice;

QUIRE_API void quire_choice_options_default(quire_choice_options *options);
/* Chooses the pairs of all layers, for quire_session_options.layers. All layers start at raw:raw;
 * the step down that costs the least KLD per byte saved is taken until the cache fits into `bytes`,
 * or as long as `kld` allows. A layer's loss on a rung is predicted as the rung's loss times the
 * layer's share, where the share is the mean of the measured and an even one. E_BUDGET: no choice
 * fits; the message gives the minimum. E_INVALID. */
QUIRE_API quire_status quire_choose_codecs(const quire_model *model,
                                           const quire_sensitivity *report,
                                           const quire_choice_options *options, quire_pair *pairs,
                                           quire_choice *choice);

/* ---- saved sequences
 * Files as in quire.h that also hold the model's identity: a cache is never loaded into another
 * model. */

/* Lines of text, such as "weights 0123..", that identify the model by the content of its file, not
 * by its name. They cover the tensors and their data, the vocabulary, and every number of the
 * architecture, RoPE and windows included, but neither general.* nor the chat template. The first
 * call reads the whole file; with a cache_dir, the file is read again only after it has changed.
 * The text lives as long as the model. E_IO, E_NOMEM. */
QUIRE_API quire_status quire_model_identity(const quire_model *model, const char **text);
/* The same, and lines on how this session computes: the type its weights are expanded to, and how K
 * is rounded. As quire_store_text.identity it makes a store return exactly the bytes that a cold
 * run would compute, on machines and builds that compute alike. Lives as long as the session. */
QUIRE_API quire_status quire_session_identity(quire_session *session, const char **text);
/* tokens: those that the sequence holds, and optionally more that follow them, such as the token
 * generated last. */
QUIRE_API quire_status quire_session_save(const quire_session *session, const quire_seq *seq,
                                          const char *path, const int32_t *tokens,
                                          int32_t n_tokens);
/* Creates a sequence from an open file; quire_file_get_info has its tokens. reseal: as in
 * quire_load_options. E_IDENTITY: quire_last_error() says whether weights, vocabulary or
 * architecture differ. E_TOO_BIG: longer than the context. E_FORMAT: the file has no tokens, or
 * some that the model does not have. Others as quire_seq_load. */
QUIRE_API quire_status quire_session_load(quire_session *session, quire_file *file, bool reseal,
                                          quire_seq **seq);

/* ------------------------------------------------------------------ sampling */

typedef struct quire_logit_bias {
    int32_t token;
    float bias; /* added to the token's logit; -INFINITY: never chosen */
} quire_logit_bias;

/* libllama's samplers, with the defaults of llama.cpp's programs, in this order: bias, grammar,
 * penalties, DRY, top_k, top_p, min_p, temp. Penalties and DRY count the prompt too. */
typedef struct quire_sampler_options {
    size_t struct_size;  /* set by quire_sampler_options_default */
    float temp;          /* 0, or below 1e-30: the likeliest token; default 0.8 */
    int32_t top_k;       /* 0: off; default 40 */
    float top_p;         /* 1: off; default 0.95 */
    float min_p;         /* 0: off; default 0.05 */
    uint32_t seed;       /* default 1 */
    const char *grammar; /* GBNF; the text must match its rule `root`; NULL: none. Not used after
                            the call */
    /* Penalties, for tokens that are among the last penalty_last_n. */
    int32_t penalty_last_n; /* 0: off; default 64 */
    float repeat_penalty;   /* > 0; divides positive logits and multiplies others; default 1: off */
    float frequency_penalty; /* subtracted once per occurrence; default 0: off */
    float presence_penalty;  /* subtracted once; default 0: off */
    /* DRY: a token that would extend a repetition of n >= dry_allowed_length tokens loses
     * dry_multiplier * dry_base ^ (n - dry_allowed_length). */
    float dry_multiplier;       /* default 0: off */
    float dry_base;             /* >= 1; default 1.75 */
    int32_t dry_allowed_length; /* default 2 */
    int32_t dry_last_n;         /* how many of the last tokens are searched; 0: off; default 64 */
    /* (n_dry_breakers) Texts of at most 40 bytes at which a repetition ends. Not used after the
     * call. Default "\n", ":", "\"", "*". */
    const char *const *dry_breakers;
    size_t n_dry_breakers;
    const quire_logit_bias *bias; /* (n_bias) Not used after the call. Default: none */
    size_t n_bias;
} quire_sampler_options;

QUIRE_API void quire_sampler_options_default(quire_sampler_options *options);
/* E_INVALID: a value is out of range, or the grammar is wrong; quire_last_error() names it. */
QUIRE_API quire_status quire_sampler_create(quire_sampler **sampler, const quire_model *model,
                                            const quire_sampler_options *options);
QUIRE_API void quire_sampler_free(quire_sampler *sampler); /* NULL is fine */
/* Resets penalties and DRY to these tokens, the prompt. The grammar does not see them.
 * quire_generate calls it. */
QUIRE_API void quire_sampler_begin(quire_sampler *sampler, const int32_t *tokens, int32_t n_tokens);
/* Chooses a token and records it for the next choice. */
QUIRE_API quire_status quire_sampler_next(quire_sampler *sampler, const float *logits,
                                          int32_t *token);

/* ------------------------------------------------------------------ generation */

typedef struct quire_generate_options {
    size_t struct_size; /* set by quire_generate_options_default */
    int32_t max_tokens; /* default 128 */
    bool exact;         /* exact steps in decoding too */
    bool ignore_end;    /* do not stop when the model ends its text */
    /* The sequence already holds this many tokens of the prompt; default 0. If it holds all of
     * them, the logits of the last quire_session_prompt are used. */
    int32_t n_cached;
    /* The one token after these was generated by an earlier call: decode it, as that call would
     * have done next, instead of prefilling it. If it ended the text, nothing is generated. */
    bool resume;
    /* Guess up to this many tokens by looking them up in the text so far, and verify them in one
     * step; 0: off. With on_token, fewer where a page is sealed or leaves a window, so that a stop
     * can take back exactly what was not told. */
    int32_t draft;
    /* Called with every token, including the one that ends the text, after its step was committed.
     * False stops. */
    bool (*on_token)(void *user, int32_t token, const char *bytes, size_t n_bytes);
    void (*on_prefill)(void *user, int32_t done);
    void *user;
} quire_generate_options;

typedef struct quire_generate_result {
    int32_t n_prompt, n_generated; /* n_prompt: prefilled */
    int32_t n_decoded; /* of those generated, all but the one that the end of the prompt gives */
    double prefill_seconds, decode_seconds;
    int32_t n_drafted, n_accepted; /* draft tokens tried, and how many were right */
    bool ended;                    /* by the model; not by max_tokens, on_token or the context */
} quire_generate_result;

QUIRE_API void quire_generate_options_default(quire_generate_options *options);
/* Appends the part of the prompt that is not cached to `seq`, and continues it. At the end the
 * sequence holds every token but the last one generated, which nothing was computed from yet.
 * *result is filled on failure too. */
QUIRE_API quire_status quire_generate(quire_session *session, quire_seq *seq,
                                      quire_sampler *sampler, const int32_t *prompt,
                                      int32_t n_prompt, const quire_generate_options *options,
                                      quire_generate_result *result);

#ifdef __cplusplus
}
#endif
#endif
