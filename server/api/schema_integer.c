/* schema_integer.c: integers between two bounds, digit by digit. */
#include "api/schema_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const int64_t LARGEST = 999999999999999999; /* 18 digits */

static void alternative(srv_text *body, bool *first) {
    srv_text_put(body, *first ? "" : " | ");
    *first = false;
}

static void digits_class(srv_text *body, char low, char high) {
    if (low == high)
        srv_text_print(body, "\"%c\"", low);
    else
        srv_text_print(body, "[%c-%c]", low, high);
}

static void any_digits(srv_text *body, size_t n) {
    if (n > 0)
        srv_text_print(body, " [0-9]{%d}", (int)n);
}

/* Digits from low to high, which have the same length: a common beginning, then
 * low's next digit .. , digits between, high's next digit .. */
static void same_length(srv_text *body, const char *low, const char *high) {
    const size_t n = strlen(low);
    size_t same = 0;
    while (same < n && low[same] == high[same])
        same++;
    if (same > 0)
        srv_text_print(body, "\"%.*s\"", (int)same, low);
    if (same == n)
        return;
    low += same;
    high += same;
    const size_t left = n - same - 1;
    if (left == 0) {
        srv_text_put(body, " ");
        digits_class(body, low[0], high[0]);
        return;
    }
    char nines[24] = "", zeros[24] = "";
    memset(nines, '9', left);
    memset(zeros, '0', left);
    nines[left] = zeros[left] = '\0';
    /* If low is 300 and high 599, whole hundreds stand between them, ends included. */
    const bool low_whole = strcmp(low + 1, zeros) == 0, high_whole = strcmp(high + 1, nines) == 0;
    const char from = low_whole ? low[0] : (char)(low[0] + 1);
    const char to = high_whole ? high[0] : (char)(high[0] - 1);
    bool first = true;
    srv_text_put(body, " ( ");
    if (!low_whole) {
        alternative(body, &first);
        srv_text_print(body, "\"%c\" ", low[0]);
        same_length(body, low + 1, nines);
    }
    if (from <= to) {
        alternative(body, &first);
        digits_class(body, from, to);
        any_digits(body, left);
    }
    if (!high_whole) {
        alternative(body, &first);
        srv_text_print(body, "\"%c\" ", high[0]);
        same_length(body, zeros, high + 1);
    }
    srv_text_put(body, " )");
}

/* 0 <= low <= high */
static void write_range(srv_text *body, int64_t low, int64_t high, const char *sign, bool *first) {
    char from[24], to[24], end[24];
    while (low <= high) {
        snprintf(from, sizeof from, "%lld", (long long)low);
        snprintf(to, sizeof to, "%lld", (long long)high);
        const size_t n = strlen(from);
        const char *last = to;
        if (strlen(to) > n) { /* as far as numbers have the length of low */
            memset(end, '9', n);
            end[n] = '\0';
            last = end;
        }
        alternative(body, first);
        srv_text_print(body, "%s", sign);
        same_length(body, from, last);
        if (last == to)
            return;
        low = 1;
        for (size_t i = 0; i < n; i++)
            low *= 10;
    }
}

/* *value: the least integer that is allowed (or the largest, if `most`). */
static bool read_bound(schema_converter *c, const json_t *schema, const char *keyword,
                       bool exclusive, bool most, int64_t *value) {
    const json_t *field = json_object_get(schema, keyword);
    if (!field)
        return true;
    if (!json_is_number(field))
        return schema_refuse(c, keyword, "must be a number");
    const double given = json_number_value(field);
    if (fabs(given) > (double)LARGEST) {
        if ((given > 0) == most)
            return true; /* further than the grammar goes */
        return schema_refuse(c, keyword, "integers of more than 18 digits are not supported");
    }
    int64_t bound = json_is_integer(field) ? json_integer_value(field)
                                           : (int64_t)(most ? floor(given) : ceil(given));
    if (exclusive && (double)bound == given)
        bound += most ? -1 : 1;
    if (most ? bound < *value : bound > *value)
        *value = bound;
    return true;
}

bool schema_integer(schema_converter *c, const json_t *schema, srv_text *body) {
    int64_t low = -LARGEST, high = LARGEST;
    if (!read_bound(c, schema, "minimum", false, false, &low) ||
        !read_bound(c, schema, "exclusiveMinimum", true, false, &low) ||
        !read_bound(c, schema, "maximum", false, true, &high) ||
        !read_bound(c, schema, "exclusiveMaximum", true, true, &high))
        return false;
    if (low > high)
        return schema_refuse(c, "maximum", "no integer lies between minimum and maximum");
    if (low == -LARGEST && high == LARGEST) {
        srv_text_put(body, "integer");
        return true;
    }
    bool first = true;
    if (low < 0)
        write_range(body, high < 0 ? -high : 1, -low, "\"-\" ", &first);
    if (high >= 0)
        write_range(body, low > 0 ? low : 0, high, "", &first);
    return true;
}
