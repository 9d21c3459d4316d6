/* schema_string.c: strings. */
#include "api/schema_parts.h"

static bool write_pattern(schema_converter *c, const json_t *schema, srv_text *body) {
    const json_t *pattern = json_object_get(schema, "pattern");
    char why[120];
    if (json_object_get(schema, "minLength") || json_object_get(schema, "maxLength"))
        return schema_refuse(c, "pattern", "not supported beside minLength and maxLength");
    if (!json_is_string(pattern))
        return schema_refuse(c, "pattern", "must be a string");
    srv_text_put(body, "\"\\\"\" ");
    if (!schema_pattern(json_string_value(pattern), body, why, sizeof why))
        return schema_refuse(c, "pattern", "%s", why);
    srv_text_put(body, " \"\\\"\"");
    return true;
}

bool schema_string(schema_converter *c, const json_t *schema, srv_text *body) {
    int min = 0, max = -1;
    if (json_object_get(schema, "pattern"))
        return write_pattern(c, schema, body);
    if (!schema_count(c, schema, "minLength", &min) || !schema_count(c, schema, "maxLength", &max))
        return false;
    if (max >= 0 && max < min)
        return schema_refuse(c, "maxLength", "less than minLength");
    if (min == 0 && max < 0)
        srv_text_put(body, "string");
    else if (max == 0)
        srv_text_put(body, "\"\\\"\\\"\"");
    else if (max < 0)
        srv_text_print(body, "\"\\\"\" char{%d,} \"\\\"\"", min);
    else
        srv_text_print(body, "\"\\\"\" char{%d,%d} \"\\\"\"", min, max);
    return true;
}
