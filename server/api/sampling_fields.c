/* sampling_fields.c: the fields that both kinds of requests have, with OpenAI's defaults. */
#include "api/request.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

/* libllama takes 2^32 - 1 for "choose a seed", and choice i has seed + i: stay below. */
static uint32_t folded_seed(uint64_t seed) {
    return (uint32_t)(seed ^ (seed >> 32)) % (UINT32_MAX - UINT16_MAX);
}

static bool read_seed(api_parser *p) {
    uint64_t random = 0;
    if (getentropy(&random, sizeof random) != 0) /* none: any number will do */
        random = (uint64_t)time(NULL) * 0x9E3779B97F4A7C15u + (uint64_t)clock();
    int64_t seed = (int64_t)random;
    if (!api_read_int(p->body, "seed", INT64_MIN, INT64_MAX, &seed, p->error))
        return false;
    p->request->work.sampling.seed = folded_seed((uint64_t)seed);
    return true;
}

static bool read_numbers(api_parser *p) {
    quire_sampler_options *s = &p->request->work.sampling;
    const struct {
        const char *name;
        double min, max;
        float *value;
    } numbers[] = {
        {"temperature", 0, 2, &s->temp},
        {"top_p", 0, 1, &s->top_p},
        {"min_p", 0, 1, &s->min_p},
        {"presence_penalty", -2, 2, &s->presence_penalty},
        {"frequency_penalty", -2, 2, &s->frequency_penalty},
        {"repeat_penalty", 0.1, 10, &s->repeat_penalty},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (!api_read_number(p->body, numbers[i].name, numbers[i].min, numbers[i].max,
                             numbers[i].value, p->error))
            return false;
    return true;
}

static bool read_integers(api_parser *p) {
    srv_work *work = &p->request->work;
    int64_t top_k = 0, n = 1, max_tokens = 0, last_n = work->sampling.penalty_last_n;
    if (!api_read_int(p->body, "top_k", -1, INT32_MAX, &top_k, p->error) ||
        !api_read_int(p->body, "repeat_last_n", 0, p->context, &last_n, p->error) ||
        !api_read_int(p->body, "n", 1, p->limits->max_choices, &n, p->error) ||
        !api_read_int(p->body, "max_tokens", 1, p->context, &max_tokens, p->error))
        return false;
    if (p->request->kind == API_CHAT && /* the newer name wins */
        !api_read_int(p->body, "max_completion_tokens", 1, p->context, &max_tokens, p->error))
        return false;
    work->sampling.top_k = top_k > 0 ? (int32_t)top_k : 0; /* -1 is what others call "off" */
    work->sampling.penalty_last_n = (int32_t)last_n;
    work->n_choices = (int32_t)n;
    work->max_tokens = (int32_t)max_tokens;
    return true;
}

/* ------------------------------------------------------------------ lists */

static bool add_stop(api_parser *p, const json_t *stop) {
    srv_work *work = &p->request->work;
    if (!json_is_string(stop))
        return api_wrong_type(p->error, "stop", "a string or a list of strings");
    const size_t n = json_string_length(stop);
    if (n == 0 || n > API_STOP_BYTES)
        return api_fail(p->error, 400, "stop",
                        "A text in 'stop' has %zu bytes; 1 to %d are allowed.", n,
                        (int)API_STOP_BYTES);
    p->owned->stops[work->n_stops++] = json_string_value(stop);
    return true;
}

static bool read_stops(api_parser *p) {
    const json_t *stop = api_field(p->body, "stop");
    p->request->work.stops = p->owned->stops;
    if (!stop)
        return true;
    if (!json_is_array(stop))
        return add_stop(p, stop);
    if (json_array_size(stop) > SRV_STOPS)
        return api_fail(p->error, 400, "stop", "'stop' has %zu texts; at most %d are allowed.",
                        json_array_size(stop), (int)SRV_STOPS);
    for (size_t i = 0; i < json_array_size(stop); i++)
        if (!add_stop(p, json_array_get(stop, i)))
            return false;
    return true;
}

static bool add_bias(api_parser *p, const char *key, const json_t *value, quire_logit_bias *bias) {
    char *end;
    errno = 0;
    const long token = strtol(key, &end, 10);
    if (errno != 0 || *end || *key < '0' || *key > '9' || token < 0 || token >= p->n_vocab)
        return api_fail(p->error, 400, "logit_bias",
                        "A key of 'logit_bias' is '%.20s'; keys are tokens from 0 to %d.", key,
                        (int)p->n_vocab - 1);
    const double given = json_is_number(value) ? json_number_value(value) : 1000;
    if (!(given >= -100 && given <= 100))
        return api_fail(p->error, 400, "logit_bias",
                        "'logit_bias' of token %ld must be a number from -100 to 100.", token);
    *bias = (quire_logit_bias){.token = (int32_t)token, .bias = (float)given};
    return true;
}

static bool read_bias(api_parser *p) {
    json_t *field = api_field(p->body, "logit_bias");
    if (!field)
        return true;
    if (!json_is_object(field))
        return api_wrong_type(p->error, "logit_bias", "an object of token -> bias");
    const size_t n = json_object_size(field);
    if (n > API_BIASES)
        return api_fail(p->error, 400, "logit_bias",
                        "'logit_bias' has %zu tokens; at most %d are allowed.", n, (int)API_BIASES);
    quire_logit_bias *list = p->owned->bias = malloc((n + 1) * sizeof *list);
    if (!list)
        return api_no_memory(p->error);
    const char *key;
    json_t *value;
    size_t i = 0;
    json_object_foreach(field, key, value) {
        if (!add_bias(p, key, value, &list[i++]))
            return false;
    }
    p->request->work.sampling.bias = list;
    p->request->work.sampling.n_bias = n;
    return true;
}

/* ------------------------------------------------------------------ all */

static bool read_stream(api_parser *p) {
    api_request *r = p->request;
    if (!api_read_bool(p->body, "stream", &r->stream, p->error))
        return false;
    const json_t *options = api_field(p->body, "stream_options");
    if (!options)
        return true;
    if (!json_is_object(options))
        return api_wrong_type(p->error, "stream_options", "an object");
    if (!r->stream)
        return api_fail(p->error, 400, "stream_options",
                        "'stream_options' is allowed only if 'stream' is true.");
    return api_read_bool(options, "stream_options.include_usage", &r->include_usage, p->error);
}

bool api_read_sampling(api_parser *p) {
    srv_work *work = &p->request->work;
    quire_sampler_options_default(&work->sampling);
    work->sampling.temp = 1;
    work->sampling.top_p = 1;
    work->sampling.top_k = 0;
    work->sampling.min_p = 0;
    work->n_logprobs = -1;
    return read_seed(p) && read_numbers(p) && read_integers(p) && read_stops(p) && read_bias(p) &&
           read_stream(p) && api_read_bool(p->body, "ignore_eos", &work->ignore_end, p->error);
}
