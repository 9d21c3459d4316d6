/* niah_text.c: makes texts by repeating sentences, and facts: a number for each place. */
#include "eval/niah_text.h"

#include "options/model_args.h"
#include "output/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SENTENCE_BYTES = 256 };

static const char OPENING[] = "Here is a text. It contains a secret number. Remember it.\n\n";

static const char *const HAY[] = {
    " The ferry left the harbour a little after eight, and the gulls followed it as far as the "
    "lighthouse.",
    " In the valley the farmers were cutting hay, because the radio had promised three dry days.",
    " My aunt kept her letters in a tin box under the stairs, sorted by the colour of the stamps.",
    " A baker on our street opens before sunrise and closes as soon as the last loaf is sold.",
    " The library bought two new shelves, which were full again before the paint had dried.",
    " Most of the old railway is a footpath today, with brambles on both sides and a bridge of "
    "iron.",
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

static const char *const LOOKS[] = {"blue", "old",    "green", "stone",
                                    "red",  "little", "white", "broken"};
static const char *const THINGS[] = {"house", "mill",   "tower", "bridge",
                                     "barn",  "chapel", "gate",  "wheel"};
enum { N_LOOKS = sizeof LOOKS / sizeof *LOOKS, N_THINGS = sizeof THINGS / sizeof *THINGS };

/* ------------------------------------------------------------------ hay */

typedef struct builder {
    const quire_model *model;
    cli_hay *hay;
    int32_t n, capacity, n_wanted;
    bool failed;
} builder;

static void append(builder *b, const char *text, size_t n_bytes, int flags) {
    int32_t n = 0;
    quire_status status = quire_model_tokenize(b->model, text, n_bytes, flags,
                                               b->hay->tokens + b->n, b->capacity - b->n, &n);
    if (status ==
        QUIRE_E_TOO_BIG) { /* a longer sentence than before: make room for it and the rest */
        b->capacity = 2 * (b->n + n + b->n_wanted);
        int32_t *larger = realloc(b->hay->tokens, (size_t)b->capacity * sizeof *larger);
        if (larger) {
            b->hay->tokens = larger;
            status = quire_model_tokenize(b->model, text, n_bytes, flags, larger + b->n,
                                          b->capacity - b->n, &n);
        }
    }
    if (status != QUIRE_OK) {
        cli_quire_error("cannot tokenize the haystack", status, NULL);
        b->failed = true;
    } else if (n > 0) {
        b->n += n;
        b->hay->ends[b->hay->n_ends++] = b->n;
    }
}

static void append_own(builder *b) {
    for (uint32_t i = 0; !b->failed && b->n < b->n_wanted; i++)
        append(b, HAY[i % N_HAY], strlen(HAY[i % N_HAY]), 0);
}

static void append_file(builder *b, const char *file) {
    size_t n_bytes;
    char *text = cli_file_read(file, &n_bytes);
    b->failed = !text;
    while (!b->failed && b->n < b->n_wanted) {
        const int32_t before = b->n;
        for (const char *line = text; *line && !b->failed && b->n < b->n_wanted;) {
            size_t n = strcspn(line, "\n");
            n += line[n] == '\n';
            if (strspn(line, " \r\n") < n)
                append(b, line, n, 0);
            line += n;
        }
        if (!b->failed && b->n == before) {
            cli_error("'%s' has no text; give a file with text", file);
            b->failed = true;
        }
    }
    free(text);
}

bool cli_hay_make(const quire_model *model, const char *file, int32_t n_tokens, cli_hay *hay) {
    *hay = (cli_hay){.ends = malloc(((size_t)n_tokens + 2) * sizeof *hay->ends)};
    builder b = {.model = model, .hay = hay, .n_wanted = n_tokens};
    if (hay->ends)
        append(&b, OPENING, strlen(OPENING), QUIRE_TOKENIZE_START);
    else
        cli_error("out of memory");
    if (hay->ends && !b.failed) {
        if (file)
            append_file(&b, file);
        else
            append_own(&b);
    }
    if (hay->ends && !b.failed)
        return true;
    cli_hay_free(hay);
    return false;
}

void cli_hay_free(cli_hay *hay) {
    free(hay->tokens);
    free(hay->ends);
    *hay = (cli_hay){0};
}

int32_t cli_hay_end_before(const cli_hay *hay, int32_t n_tokens) {
    int32_t low = 0,
            high =
                hay->n_ends; /* ends before `low` are <= n_tokens, those from `high` on are not */
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (hay->ends[middle] <= n_tokens)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 ? hay->ends[low - 1] : 0;
}

/* ------------------------------------------------------------------ needle */

static bool tokenize(const quire_model *model, const char *text, int32_t *tokens, int32_t most,
                     int32_t *n) {
    quire_status status = quire_model_tokenize(model, text, strlen(text), 0, tokens, most, n);
    if (status != QUIRE_OK)
        cli_quire_error("cannot tokenize a question", status, NULL);
    return status == QUIRE_OK;
}

/* The first eight facts share no word, and all CLI_NEEDLES differ. */
bool cli_needle_make(const quire_model *model, int32_t index, cli_needle *needle) {
    _Static_assert(CLI_NEEDLES == N_LOOKS * N_THINGS, "one fact per pair of a look and a thing");
    char place[SENTENCE_BYTES / 4], fact[SENTENCE_BYTES], question[SENTENCE_BYTES],
        said[sizeof needle->answer + 1];
    const uint32_t i = (uint32_t)index % CLI_NEEDLES;
    snprintf(place, sizeof place, "%s %s", LOOKS[i % N_LOOKS],
             THINGS[(i + i / N_LOOKS) % N_THINGS]);
    snprintf(needle->answer, sizeof needle->answer, "%u",
             1000 + (1309 + i * 2477) % 9000); /* all different */
    snprintf(fact, sizeof fact, " The secret number of the %s is %s.", place, needle->answer);
    snprintf(question, sizeof question,
             "\n\nQuestion: What is the secret number of the %s?\nAnswer: The secret number of the "
             "%s is",
             place, place);
    snprintf(said, sizeof said, " %s", needle->answer);
    return tokenize(model, fact, needle->fact, CLI_NEEDLE_TOKENS, &needle->n_fact) &&
           tokenize(model, question, needle->question, CLI_NEEDLE_TOKENS, &needle->n_question) &&
           tokenize(model, said, needle->said, CLI_ANSWER_TOKENS, &needle->n_said);
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool cli_needle_is_in(const cli_needle *needle, const char *text) {
    const size_t n = strlen(needle->answer);
    for (const char *at = text; (at = strstr(at, needle->answer)) != NULL; at++)
        if (!is_digit(at[n]) && (at == text || !is_digit(at[-1])))
            return true;
    return false;
}
