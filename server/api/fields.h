/* fields.h: typed fields of a request's JSON, and the errors that name them.
 *
 * A name may have parts, as in "stream_options.include_usage": the last one is the key, the whole
 * is what the error names. A field that is missing or null leaves *value as it is. Functions return
 * false if they filled in *error. */
#ifndef SERVER_API_FIELDS_H
#define SERVER_API_FIELDS_H

#include "api/api.h"

#include <jansson.h>

#if defined(__GNUC__)
#define API_PRINTS(at, rest) __attribute__((format(printf, at, rest)))
#else
#define API_PRINTS(at, rest)
#endif

/* All of these return false. */
bool api_fail(api_error *error, int status, const char *param, const char *format, ...)
    API_PRINTS(4, 5);
bool api_no_memory(api_error *error);
bool api_wrong_type(api_error *error, const char *name, const char *expected);

/* NULL: the field is missing or null. */
json_t *api_field(const json_t *object, const char *name);
bool api_read_bool(const json_t *object, const char *name, bool *value, api_error *error);
bool api_read_int(const json_t *object, const char *name, int64_t min, int64_t max, int64_t *value,
                  api_error *error);
bool api_read_number(const json_t *object, const char *name, double min, double max, float *value,
                     api_error *error);
/* *value lives as long as the JSON. */
bool api_read_string(const json_t *object, const char *name, const char **value, api_error *error);
/* A body as a JSON object; json_decref it. NULL: *error. */
json_t *api_read_body(const char *body, size_t n_body, api_error *error);

#endif
