/* request.h: what the parts of a request's parser share. */
#ifndef SERVER_API_REQUEST_H
#define SERVER_API_REQUEST_H

#include "api/fields.h"
#include "base/growing_text.h"

enum {
    API_PROMPT_BYTES = 16 << 20, /* longer prompts are refused before they are tokenized */
    /* So are longer words: cutting one up may take 320 times its bytes (engine/model/tokenize.c).
     */
    API_WORD_BYTES = 256 << 10,
    API_MESSAGES = 1 << 14,
    API_STOP_BYTES = 1024,
    API_BIASES = 1024,
    API_TOOLS = 128,
    API_GRAMMAR_BYTES = 1 << 20
};

/* What api_request.work points to. */
typedef struct api_owned {
    json_t *body; /* stop texts and grammars that were given lie in it */
    int32_t *tokens;
    char *grammar; /* one that was made here */
    quire_logit_bias *bias;
    const char *stops[SRV_STOPS];
} api_owned;

typedef struct api_parser {
    const json_t *body;
    const api_limits *limits;
    api_request *request;
    api_owned *owned;
    api_error *error;
    int32_t n_vocab, context; /* context: of the cache that was chosen */
} api_parser;

/* Each returns false if it filled in *parser->error. */
bool api_read_sampling(api_parser *parser);   /* what both kinds of requests have */
bool api_read_chat(api_parser *parser);       /* messages, tools, formats -> tokens, grammar */
bool api_read_completion(api_parser *parser); /* prompt -> tokens */

/* The tokens of plain text in malloced memory. flags: as in quire_model_tokenize. `param` is the
 * field that an error names. */
bool api_tokens_of(const quire_model *model, const char *text, size_t n_bytes, int flags,
                   const char *param, int32_t **tokens, int32_t *n_tokens, api_error *error);
/* Whether words are short enough to be tokenized; api_tokens_of asks itself. */
bool api_check_words(const char *text, size_t n_bytes, const char *param, api_error *error);
/* An error of the engine's tokenizers as one of the request. Returns false. */
bool api_tokenize_failed(quire_status status, const char *param, api_error *error);

#endif
