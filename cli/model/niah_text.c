/* niah_text.c: sentences until the text is long enough. */
#include "niah_text.h"

#include "model_args.h"
#include "report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SENTENCE_BYTES = 256 };

static const char *const HAY[] = {
    " The ferry left the harbour a little after eight, and the gulls followed it as far as the lighthouse.",
    " In the valley the farmers were cutting hay, because the radio had promised three dry days.",
    " My aunt kept her letters in a tin box under the stairs, sorted by the colour of the stamps.",
    " A baker on our street opens before sunrise and closes as soon as the last loaf is sold.",
    " The library bought two new shelves, which were full again before the paint had dried.",
    " Most of the old railway is a footpath today, with brambles on both sides and a bridge of iron.",
    " He repaired clocks for a living and was late for everything else.",
    " When the river is low one can see the stones of the mill that stood here once.",
    " The children drew a map of the garden and marked every place where the cat liked to sleep.",
    " It rained for most of the week, so the painters worked indoors and sang.",
    " Nobody remembers who planted the walnut tree, but everybody has an opinion about its shade.",
    " The market sells apples by the crate in autumn and by the piece in spring.",
    " She wrote the recipe on the back of a ticket and never cooked it the same way twice.",
    " At noon the bells of two churches disagree by almost a minute.",
};
enum { N_HAY = sizeof HAY / sizeof *HAY };

static const char *const PLACES[] = {"blue house", "old mill", "north gate", "green tower", "red barn", "stone bridge"};
enum { N_PLACES = sizeof PLACES / sizeof *PLACES };

typedef struct builder {
    const quire_model *model;
    int32_t *tokens, n, capacity;
    bool failed;
} builder;

static int32_t count(builder *b, const char *text, int flags) {
    int32_t n = 0;
    quire_status status = quire_model_tokenize(b->model, text, strlen(text), flags, NULL, 0, &n);
    b->failed = b->failed || (status != QUIRE_OK && status != QUIRE_E_TOO_BIG);
    return n;
}

static void append(builder *b, const char *text, int flags) {
    int32_t n = 0;
    quire_status status =
        quire_model_tokenize(b->model, text, strlen(text), flags, b->tokens + b->n, b->capacity - b->n, &n);
    if (status == QUIRE_OK)
        b->n += n;
    else
        b->failed = true;
}

bool cli_niah_make(const quire_model *model, int32_t length, double depth, uint32_t seed, cli_niah *niah) {
    builder b = {.model = model, .capacity = length, .tokens = malloc((size_t)length * sizeof(int32_t))};
    if (!b.tokens) {
        cli_error("out of memory");
        return false;
    }
    char fact[SENTENCE_BYTES], question[SENTENCE_BYTES];
    const char *place = PLACES[seed % N_PLACES];
    snprintf(niah->answer, sizeof niah->answer, "%u", 1000 + (seed * 2654435761u >> 8) % 9000);
    snprintf(fact, sizeof fact, " The secret number of the %s is %s.", place, niah->answer);
    snprintf(question, sizeof question,
             "\n\nQuestion: What is the secret number of the %s?\nAnswer: The secret number of the %s is", place,
             place);
    static const char start[] = "Here is a text. It contains a secret number. Remember it.\n\n";
    const int32_t fixed = count(&b, fact, 0) + count(&b, question, 0);
    append(&b, start, QUIRE_TOKENIZE_START);
    const int32_t first = b.n, room = length - fixed - first;
    const int32_t hidden_at = first + (int32_t)(depth * (room > 0 ? room : 0));
    bool hidden = false;
    for (uint32_t i = 0; !b.failed; i++) {
        const char *sentence = HAY[(i + seed) % N_HAY];
        if (!hidden && b.n + count(&b, sentence, 0) > hidden_at) {
            append(&b, fact, 0);
            hidden = true;
        }
        if (b.n + count(&b, sentence, 0) + (hidden ? fixed - count(&b, fact, 0) : fixed) > length)
            break;
        append(&b, sentence, 0);
    }
    if (!hidden)
        append(&b, fact, 0);
    append(&b, question, 0);
    if (b.failed || room < 0) {
        cli_error("a text of %d tokens is too short for a fact and a question", (int)length);
        free(b.tokens);
        return false;
    }
    niah->tokens = b.tokens;
    niah->n_tokens = b.n;
    return true;
}
