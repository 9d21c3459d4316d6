/* fields.c: see fields.h. */
#include "api/fields.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------ errors */

static void fill(api_error *error, int status, const char *param) {
    *error = (api_error){.status = status,
                         .type = status < 500 ? "invalid_request_error" : "server_error"};
    snprintf(error->param, sizeof error->param, "%s", param ? param : "");
}

bool api_fail(api_error *error, int status, const char *param, const char *format, ...) {
    fill(error, status, param);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    return false;
}

bool api_no_memory(api_error *error) {
    return api_fail(error, 500, NULL, "The server is out of memory.");
}

bool api_wrong_type(api_error *error, const char *name, const char *expected) {
    return api_fail(error, 400, name, "'%s' must be %s.", name, expected);
}

/* ------------------------------------------------------------------ fields */

json_t *api_field(const json_t *object, const char *name) {
    const char *dot = strrchr(name, '.');
    json_t *value = json_object_get(object, dot ? dot + 1 : name);
    return json_is_null(value) ? NULL : value;
}

bool api_read_bool(const json_t *object, const char *name, bool *value, api_error *error) {
    const json_t *field = api_field(object, name);
    if (!field)
        return true;
    if (!json_is_boolean(field))
        return api_wrong_type(error, name, "true or false");
    *value = json_is_true(field);
    return true;
}

bool api_read_int(const json_t *object, const char *name, int64_t min, int64_t max, int64_t *value,
                  api_error *error) {
    const json_t *field = api_field(object, name);
    if (!field)
        return true;
    if (!json_is_integer(field))
        return api_fail(error, 400, name, "'%s' must be an integer from %lld to %lld.", name,
                        (long long)min, (long long)max);
    const int64_t given = json_integer_value(field);
    if (given < min || given > max)
        return api_fail(error, 400, name, "'%s' is %lld; it must be an integer from %lld to %lld.",
                        name, (long long)given, (long long)min, (long long)max);
    *value = given;
    return true;
}

bool api_read_number(const json_t *object, const char *name, double min, double max, float *value,
                     api_error *error) {
    const json_t *field = api_field(object, name);
    if (!field)
        return true;
    if (!json_is_number(field))
        return api_fail(error, 400, name, "'%s' must be a number from %g to %g.", name, min, max);
    const double given = json_number_value(field);
    if (!(given >= min && given <= max))
        return api_fail(error, 400, name, "'%s' is %g; it must be a number from %g to %g.", name,
                        given, min, max);
    *value = (float)given;
    return true;
}

bool api_read_string(const json_t *object, const char *name, const char **value, api_error *error) {
    const json_t *field = api_field(object, name);
    if (!field)
        return true;
    if (!json_is_string(field))
        return api_wrong_type(error, name, "a string");
    *value = json_string_value(field);
    return true;
}

/* ------------------------------------------------------------------ body */

/* What a body of JSON takes in memory may be a hundred times its text: an empty list is two bytes
 * there, and some hundred here. So values are counted before they are made. */
static bool has_few_values(const char *body, size_t n_body) {
    enum { MOST_CONTAINERS = 1 << 17, MOST_VALUES = 1 << 20 };
    size_t containers = 0, values = 0;
    bool in_text = false;
    for (size_t i = 0; i < n_body; i++) {
        const char c = body[i];
        if (in_text && c == '\\')
            i++;
        else if (c == '"')
            in_text = !in_text;
        else if (!in_text && (c == '[' || c == '{'))
            containers++;
        else if (!in_text && (c == ',' || c == ':'))
            values++;
    }
    return containers <= MOST_CONTAINERS && values <= MOST_VALUES;
}

json_t *api_read_body(const char *body, size_t n_body, api_error *error) {
    json_error_t where;
    if (!has_few_values(body, n_body)) {
        api_fail(error, 413, NULL,
                 "The body has too many values: more than a million, or 131072 "
                 "lists and objects.");
        return NULL;
    }
    /* Also refuses "\u0000", invalid UTF-8, numbers that are too large and 2048 levels. */
    json_t *root = json_loadb(body, n_body, JSON_REJECT_DUPLICATES, &where);
    if (!root) {
        if (json_error_code(&where) == json_error_out_of_memory)
            api_no_memory(error);
        else
            api_fail(error, 400, NULL, "The body is not valid JSON: line %d, column %d: %s.",
                     where.line, where.column, where.text);
        return NULL;
    }
    if (!json_is_object(root)) {
        json_decref(root);
        api_fail(error, 400, NULL, "The body must be a JSON object.");
        return NULL;
    }
    return root;
}
