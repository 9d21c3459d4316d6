/* cache_args.c: parses attention shapes and codecs. */
#include "options/cache_args.h"

#include "options/suggest.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS_MAX = 4096, NAME_BYTES = 64 };

const char *const cli_raw_names[] = {
    [QUIRE_F32] = "f32", [QUIRE_F16] = "f16", [QUIRE_BF16] = "bf16", NULL};

/* Parses up to four numbers separated by "x". Returns how many; 0 if the text is malformed. */
static int parse_numbers(const char *text, int32_t numbers[4]) {
    for (int n = 0; n < 4; n++) {
        if (!isdigit((unsigned char)*text))
            return 0;
        char *end;
        unsigned long value = strtoul(text, &end, 10);
        if (value > HEADS_MAX)
            return 0;
        numbers[n] = (int32_t)value;
        if (!*end)
            return n + 1;
        if (*end != 'x')
            return 0;
        text = end + 1;
    }
    return 0;
}

static bool good_dim(int32_t dim) {
    return dim >= QUIRE_DIM_MIN && dim <= QUIRE_DIM_MAX && dim % QUIRE_DIM_STEP == 0;
}

bool cli_shape_parse(const char *text, cli_shape *shape) {
    int32_t numbers[4];
    int n = parse_numbers(text, numbers);
    if (n >= 3) {
        *shape = (cli_shape){numbers[0], numbers[1], numbers[2], n == 4 ? numbers[3] : numbers[2]};
        if (shape->n_kv_heads > 0 && shape->n_heads >= shape->n_kv_heads &&
            shape->n_heads % shape->n_kv_heads == 0 && good_dim(shape->k_dim) &&
            good_dim(shape->v_dim)) {
            return true;
        }
    }
    cli_error(
        "--shape cannot be '%s'; allowed: HxGxD or HxGxDKxDV, where the number of query heads H "
        "is a multiple of the number of KV heads G, and head sizes are %d to %d in steps of %d",
        text, QUIRE_DIM_MIN, QUIRE_DIM_MAX, QUIRE_DIM_STEP);
    return false;
}

cli_text cli_shape_text(const cli_shape *shape) {
    cli_text result;
    int n = snprintf(result.text, sizeof result.text, "%dx%dx%d", (int)shape->n_heads,
                     (int)shape->n_kv_heads, (int)shape->k_dim);
    if (shape->v_dim != shape->k_dim) {
        snprintf(result.text + n, sizeof result.text - (size_t)n, "x%d", (int)shape->v_dim);
    }
    return result;
}

static void offer_presets(cli_suggestion *suggestion) {
    for (size_t i = 0; i < quire_preset_count(); i++) {
        quire_preset_info info;
        if (quire_preset_at(i, &info) == QUIRE_OK)
            cli_suggest_offer(suggestion, info.name);
    }
}

static void offer_codecs(cli_suggestion *suggestion, quire_side side) {
    for (size_t i = 0; i < quire_codec_count(); i++) {
        quire_codec_info info;
        if (quire_codec_at(i, &info) != QUIRE_OK)
            continue;
        if (side == QUIRE_SIDE_K ? info.for_k : info.for_v)
            cli_suggest_offer(suggestion, info.name);
    }
}

/* For a codec without a partner, suggest the pair of that codec if it supports K and V. */
static bool suggest_twice(const char *name, char *suggested, size_t n_bytes) {
    for (size_t i = 0; i < quire_codec_count(); i++) {
        quire_codec_info info;
        if (quire_codec_at(i, &info) != QUIRE_OK || strcmp(info.name, name) != 0)
            continue;
        snprintf(suggested, n_bytes, "%s:%s", name, name);
        return info.for_k && info.for_v;
    }
    return false;
}

/* Suggests the closest preset, or the closest codecs for K:V. False: nothing is close. */
static bool suggest_policy(const char *text, char *suggested, size_t n_bytes) {
    char name[NAME_BYTES];
    if (strlen(text) >= sizeof name)
        return false;
    strcpy(name, text);
    char *colon = strchr(name, ':');
    cli_suggestion first, second;
    cli_suggest_start(&first, name);
    if (!colon) {
        if (suggest_twice(name, suggested, n_bytes))
            return true;
        offer_presets(&first);
        const char *preset = cli_suggest_result(&first);
        if (preset)
            snprintf(suggested, n_bytes, "%s", preset);
        return preset != NULL;
    }
    *colon = '\0';
    cli_suggest_start(&second, colon + 1);
    offer_codecs(&first, QUIRE_SIDE_K);
    offer_codecs(&second, QUIRE_SIDE_V);
    const char *k = cli_suggest_result(&first), *v = cli_suggest_result(&second);
    if (!k || !v)
        return false;
    snprintf(suggested, n_bytes, "%s:%s", k, v);
    return true;
}

bool cli_policy_parse(const char *text, int32_t sinks, quire_policy *policy) {
    quire_status status = quire_policy_parse(text, policy);
    if (status == QUIRE_OK) {
        if (sinks >= 0)
            policy->sinks = sinks;
        return true;
    }
    char suggested[2 * NAME_BYTES];
    bool close = suggest_policy(text, suggested, sizeof suggested);
    cli_error(
        "--kv cannot be '%s': %s; give a preset or a pair K:V ('quire codecs' lists them)%s%s%s",
        text, quire_last_error(), close ? "; did you mean '" : "", close ? suggested : "",
        close ? "'?" : "");
    return false;
}

bool cli_policy_fits(const char *text, const quire_policy *policy, const cli_shape *shape,
                     quire_type raw) {
    quire_page_shape page = {
        .pair = policy->pair, .k_dim = shape->k_dim, .v_dim = shape->v_dim, .raw = raw};
    size_t bytes;
    if (quire_page_bytes(&page, &bytes) == QUIRE_OK)
        return true;
    cli_error(
        "--kv cannot be '%s' with --shape %s: %s; 'quire codecs --dim N' lists the codecs for "
        "a head size",
        text, cli_shape_text(shape).text, quire_last_error());
    return false;
}

bool cli_codec_is_raw(quire_codec codec) {
    quire_codec_info info;
    for (size_t i = 0; quire_codec_at(i, &info) == QUIRE_OK; i++)
        if (info.codec == codec)
            return strcmp(info.family, "raw") == 0;
    return false;
}

cli_text cli_pair_text(quire_pair pair) {
    const char *k = quire_codec_name(pair.k), *v = quire_codec_name(pair.v);
    cli_text result;
    snprintf(result.text, sizeof result.text, "%s:%s", k ? k : "?", v ? v : "?");
    return result;
}
