/* JSON schemas as grammars, and grammars that are refused: server/api/schema_*.c and gbnf_check.c.
 * What a grammar matches is asked of libllama itself, byte by byte. */
#include "api/gbnf_check.h"
#include "api/schema_grammar.h"
#include "kit.h"
#include "tiny_model.h"

#include <llama.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct llama_model *model;
static char path[64];

static void quiet(enum ggml_log_level level, const char *text, void *user) {
    (void)level, (void)text, (void)user;
}

static int load(void **state) {
    (void)state;
    snprintf(path, sizeof path, "/tmp/quire_grammar_%d.gguf", (int)getpid());
    if (!tiny_model_write(path, false))
        return -1;
    llama_log_set(quiet, NULL);
    struct llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    model = llama_model_load_from_file(path, params);
    return model ? 0 : -1;
}

static int unload(void **state) {
    (void)state;
    llama_model_free(model);
    return unlink(path);
}

/* ------------------------------------------------------------------ what libllama says */

static bool allows(struct llama_sampler *grammar, llama_token token) {
    llama_token_data one = {.id = token, .logit = 1};
    llama_token_data_array array = {.data = &one, .size = 1, .selected = -1};
    llama_sampler_apply(grammar, &array);
    return one.logit > -INFINITY;
}

/* Whether the whole text matches. */
static bool matches(const char *grammar, const char *text) {
    struct llama_sampler *sampler =
        llama_sampler_init_grammar(llama_model_get_vocab(model), grammar, "root");
    if (!sampler)
        fail_msg("libllama refuses the grammar:\n%s", grammar);
    bool good = true;
    for (; good && *text; text++) {
        const llama_token token = TINY_BYTE_0 + (unsigned char)*text;
        good = allows(sampler, token);
        if (good)
            llama_sampler_accept(sampler, token);
    }
    good = good && allows(sampler, TINY_EOS);
    llama_sampler_free(sampler);
    return good;
}

/* ------------------------------------------------------------------ schemas */

/* The grammar of a schema; NULL: *error. free() it. */
static char *grammar_of(const char *schema, api_error *error) {
    json_error_t where;
    json_t *root = json_loads(schema, JSON_DECODE_ANY, &where);
    if (!root)
        fail_msg("%s: %s", schema, where.text);
    api_grammar grammar = {0};
    char rule[API_RULE_NAME];
    api_grammar_begin(&grammar);
    const bool good = api_grammar_schema(&grammar, root, "response_format", "schema", rule, error);
    json_decref(root);
    if (!good) {
        api_grammar_free(&grammar);
        return NULL;
    }
    srv_text_print(&grammar.text, "root ::= %s\n", rule);
    char *text = srv_text_take(&grammar.text), why[200];
    assert_non_null(text);
    if (!api_gbnf_check(text, why, sizeof why))
        fail_msg("%s: %s\n%s", schema, why, text);
    return text;
}

/* texts: NULL after the last. */
typedef struct schema_case {
    const char *schema;
    const char *good[12], *bad[12];
} schema_case;

static const schema_case CASES[] = {
    {"true",
     {"1", "{}", "[1, \"a\"]", "null", "-0.5e+10", "{\"a\": {\"b\": [true]}}"},
     {"", "{", "01", "nul", "[1,]", "{\"a\"}", "\"\t\"", "+1", ".5", "1 2"}},
    {"{\"type\": \"string\"}",
     {"\"\"", "\"abc\"", "\"\\n\\u00e9\\\"\"", "\"\xC3\xA9\xF0\x9F\x98\x80\""},
     {"abc", "\"a\nb\"", "\"\\q\"", "\"\\ud83d\"", "\"\\u12\"", "1", "\"a\"b\""}},
    {"{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 4}",
     {"\"ab\"", "\"abcd\"", "\"\\n\\n\"", "\"\xC3\xA9\xC3\xA9\""},
     {"\"\"", "\"a\"", "\"abcde\"", "\"\\n\""}},
    {"{\"type\": \"string\", \"minLength\": 2}", {"\"ab\"", "\"abcdefgh\""}, {"\"a\""}},
    {"{\"type\": \"string\", \"maxLength\": 0}", {"\"\""}, {"\"a\""}},
    {"{\"type\": \"boolean\"}", {"true", "false"}, {"True", "1", "null"}},
    {"{\"type\": \"null\"}", {"null"}, {"0", "false"}},
    {"{\"type\": \"number\"}",
     {"0", "-1.25", "1e5", "1.5E-3"},
     {"1.", "\"1\"", "--1", "1e", "0x1"}},
    {"{\"type\": \"integer\"}", {"0", "-12", "999999999999999999"}, {"1.5", "00", "-", "1e3"}},
    {"{\"enum\": [\"a\", 1, null, 0.1, [1, {\"b\": true}]]}",
     {"\"a\"", "1", "null", "0.1", "[1,{\"b\":true}]"},
     {"\"b\"", "2", "a", "0.10"}},
    {"{\"type\": \"string\", \"enum\": [\"x\", 3, \"y\\\"z\"]}", {"\"x\"", "\"y\\\"z\""}, {"3"}},
    {"{\"const\": \"only\"}", {"\"only\""}, {"\"onl\"", "\"only\"\""}},
    {"{\"type\": [\"string\", \"null\"]}", {"null", "\"a\""}, {"1", "true"}},
    {"{\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"array\", \"items\": {\"type\": "
     "\"null\"}}]}",
     {"5", "[]", "[null, null]"},
     {"[5]", "\"a\""}},
    {"{\"oneOf\": [{\"const\": 1}, {\"const\": 2}], \"description\": \"d\"}", {"1", "2"}, {"3"}},
    {"{\"allOf\": [{\"type\": \"null\"}]}", {"null"}, {"1"}},
    {"{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"minItems\": 1, \"maxItems\": 3}",
     {"[1]", "[1, 2]", "[ 1,2, 3 ]", "[\n  1,\n  2\n]"},
     {"[]", "[1,2,3,4]", "[1,]", "[true]"}},
    {"{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"minItems\": 2}",
     {"[1,2]", "[1,2,3,4,5,6]"},
     {"[]", "[1]"}},
    {"{\"type\": \"array\", \"maxItems\": 1}", {"[]", "[{}]"}, {"[1,2]"}},
    {"{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"maxItems\": 0}", {"[]"}, {"[1]"}},
    {"{\"items\": {\"type\": \"boolean\"}}", {"[true]"}, {"[1]", "true"}},
    {"{\"type\": \"object\"}", {"{}", "{\"a\": 1}", "{\"a\":1,\"b\":[]}"}, {"[]", "{a:1}"}},
    {"{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": "
     "\"string\"}}, \"required\": [\"a\", \"b\"], \"additionalProperties\": false}",
     {"{\"a\": 1, \"b\": \"x\"}", "{\"a\":1,\"b\":\"\"}", "{\n  \"a\": 1,\n  \"b\": \"x\"\n}"},
     {"{}", "{\"a\": 1}", "{\"b\": \"x\"}", "{\"a\": \"x\", \"b\": 1}",
      "{\"a\": 1, \"b\": \"x\", \"c\": 1}", "{\"a\": 1 \"b\": \"x\"}",
      "{\"a\": 1, \"b\": \"x\",}"}},
    {"{\"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": \"integer\"}, \"c\": "
     "{\"type\": \"integer\"}}, \"required\": [\"b\"]}",
     {"{\"b\":1}", "{\"a\":1,\"b\":2}", "{\"b\":1,\"c\":2}", "{\"a\":1,\"b\":2,\"c\":3}"},
     {"{}", "{\"a\":1}", "{\"a\":1,\"c\":2}", "{,\"b\":1}", "{\"b\":1,\"b\":2}"}},
    {"{\"type\": \"object\", \"properties\": {\"a\": {}, \"b\": {}}}",
     {"{}", "{\"a\": null}", "{\"b\": 1}", "{\"a\": 1, \"b\": [2]}"},
     {"{\"c\": 1}", "{\"a\": 1, }"}},
    {"{\"type\": \"object\", \"additionalProperties\": {\"type\": \"integer\"}}",
     {"{}", "{\"x\": 1}", "{\"x\": 1, \"\": 2}"},
     {"{\"x\": \"y\"}", "{\"\\u0061\": 1}"}},
    {"{\"type\": \"object\", \"additionalProperties\": false}", {"{}", "{ }"}, {"{\"a\":1}"}},
    /* Names that are taken: no other key may repeat them, or the schema would not hold. */
    {"{\"properties\": {\"ab\": {\"type\": \"integer\"}, \"a\": {\"type\": \"integer\"}, \"x]\": "
     "{\"type\": \"integer\"}, \"\xC3\xA9\": {\"type\": \"integer\"}}, \"additionalProperties\": "
     "{\"type\": \"string\"}}",
     {"{\"ab\": 1, \"a\": 2}", "{\"abc\": \"s\"}", "{\"b\": \"s\"}", "{\"\": \"s\"}",
      "{\"x\": \"s\", \"x]]\": \"s\"}", "{\"a\": 1, \"\xC3\xA9y\": \"s\"}"},
     {"{\"ab\": \"s\"}", "{\"a\": \"s\"}", "{\"x]\": \"s\"}", "{\"\xC3\xA9\": \"s\"}",
      "{\"abc\": 1}", "{\"\\u0061\": \"s\"}"}},
    {"{\"type\": \"object\", \"required\": [\"k\"], \"additionalProperties\": {\"type\": "
     "\"null\"}}",
     {"{\"k\": null}", "{\"k\": null, \"l\": null}"},
     {"{}", "{\"l\": null}", "{\"k\": 1}"}},
    {"{\"$defs\": {\"node\": {\"type\": \"object\", \"properties\": {\"v\": {\"type\": "
     "\"integer\"}, "
     "\"next\": {\"anyOf\": [{\"$ref\": \"#/$defs/node\"}, {\"type\": \"null\"}]}}, \"required\": "
     "[\"v\", \"next\"]}}, \"$ref\": \"#/$defs/node\"}",
     {"{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"},
     {"{\"v\":1}", "{\"v\":1,\"next\":1}", "null"}},
    {"{\"type\": \"array\", \"items\": {\"$ref\": \"#\"}}", {"[]", "[[], [[]]]"}, {"[1]"}},
    /* recursive, with optional properties and others */
    {"{\"type\": \"object\", \"properties\": {\"a\": {\"$ref\": \"#\"}, \"ab\": {\"type\": "
     "\"array\", \"items\": {\"$ref\": \"#\"}}, \"c\": {\"type\": \"null\"}}, "
     "\"additionalProperties\": "
     "{\"$ref\": \"#\"}}",
     {"{}", "{\"a\": {}, \"c\": null}", "{\"ab\": [{\"c\": null}], \"x\": {\"a\": {}}}",
      "{\"abc\": {}, \"d\": {}}"},
     {"{\"a\": {}, \"a\": {}}", "{\"c\": {}}", "{\"c\": null, \"a\": {}}"}},
    /* told apart by "op", before the recursion */
    {"{\"anyOf\": [{\"type\": \"object\", \"required\": [\"op\", \"left\", \"right\"], "
     "\"properties\": "
     "{\"op\": {\"enum\": [\"add\", \"mul\"]}, \"left\": {\"$ref\": \"#\"}, \"right\": {\"$ref\": "
     "\"#\"}}}, "
     "{\"type\": \"object\", \"required\": [\"op\", \"value\"], \"properties\": {\"op\": "
     "{\"const\": "
     "\"num\"}, \"value\": {\"type\": \"integer\"}}}]}",
     {"{\"op\": \"num\", \"value\": 1}",
      "{\"op\": \"add\", \"left\": {\"op\": \"num\", \"value\": 1}, \"right\": {\"op\": \"num\", "
      "\"value\": 2}}"},
     {"{\"op\": \"add\", \"value\": 1}", "{\"op\": \"num\"}", "1"}},
    {"{\"definitions\": {\"a/b\": {\"type\": \"null\"}}, \"$ref\": \"#/definitions/a~1b\"}",
     {"null"},
     {"1"}},
    /* integers between bounds */
    {"{\"type\": \"integer\", \"minimum\": 0}", {"0", "7", "123456"}, {"-1", "-0", "01"}},
    {"{\"type\": \"integer\", \"minimum\": 1, \"maximum\": 5}",
     {"1", "3", "5"},
     {"0", "6", "10", "-1", "15"}},
    {"{\"type\": \"integer\", \"minimum\": 7, \"maximum\": 1234}",
     {"7", "9", "10", "99", "100", "999", "1000", "1199", "1229", "1234"},
     {"6", "0", "1235", "1240", "2000", "12345", "-7"}},
    {"{\"type\": \"integer\", \"exclusiveMinimum\": -20, \"exclusiveMaximum\": 3}",
     {"-19", "-10", "-9", "-1", "0", "2"},
     {"-20", "-21", "3", "10", "-100"}},
    {"{\"type\": \"integer\", \"minimum\": -5, \"maximum\": -5}", {"-5"}, {"5", "-4", "-55"}},
    {"{\"type\": \"integer\", \"minimum\": 1.5, \"maximum\": 3.5}", {"2", "3"}, {"1", "4"}},
    {"{\"type\": \"integer\", \"maximum\": 1e30}", {"5", "-5"}, {"x"}},
    /* patterns */
    {"{\"type\": \"string\", \"pattern\": \"^[a-c]{2,3}\\\\d+$\"}",
     {"\"ab1\"", "\"abc42\""},
     {"\"a1\"", "\"abcd1\"", "\"ab\"", "\"ab1x\"", "\"xab1\""}},
    {"{\"type\": \"string\", \"pattern\": \"^(\\\\+|-)?(foo|b.r)*$\"}",
     {"\"\"", "\"+foo\"", "\"-barfoo\"", "\"b\xC3\xA9r\""},
     {"\"foobr\"", "\"*foo\"", "\"b\\nr\""}},
    {"{\"type\": \"string\", \"pattern\": \"ab\"}", {"\"ab\"", "\"xxabyy\""}, {"\"a b\"", "\"\""}},
    {"{\"type\": \"string\", \"pattern\": \"a|b\"}", {"\"a\"", "\"xbx\""}, {"\"c\""}},
    {"{\"type\": \"string\", \"pattern\": \"^[^a-z\\\\s]\\\\w\\\\W\\\\S$\"}",
     {"\"A_-x\"", "\"0z 9\""},
     {"\"aA-x\"", "\"A--x\"", "\"A_- \""}},
    {"{\"type\": \"string\", \"pattern\": \"^\\\"\\\\\\\\\\\\n\\\\u00e9$\"}",
     {"\"\\\"\\\\\\n\xC3\xA9\""},
     {"\"\\\"\\\\n\""}},
    {"{\"type\": \"string\", \"pattern\": \"^[ -~]+$\"}",
     {"\"a b~\""},
     {"\"\\\"\"", "\"\xC3\xA9\""}},
    {"{\"type\": \"string\", \"pattern\": \"^$\"}", {"\"\""}, {"\"a\""}},
};

static void schemas_match_what_is_valid(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        const schema_case *c = &CASES[i];
        api_error error = {0};
        char *grammar = grammar_of(c->schema, &error);
        if (!grammar)
            fail_msg("%s: %s", c->schema, error.message);
        for (int k = 0; c->good[k]; k++)
            if (!matches(grammar, c->good[k]))
                fail_msg("%s does not match %s\n%s", c->schema, c->good[k], grammar);
        for (int k = 0; c->bad[k]; k++)
            if (matches(grammar, c->bad[k]))
                fail_msg("%s matches %s\n%s", c->schema, c->bad[k], grammar);
        free(grammar);
    }
}

/* Every integer near every bound, against arithmetic. */
static void integers_match_arithmetic(void **state) {
    (void)state;
    rng r = {7};
    for (int round = 0; round < 60; round++) {
        const int wide = round % 3 == 0 ? 20 : round % 3 == 1 ? 300 : 20000;
        const int a = rng_below(&r, 2 * wide) - wide, b = rng_below(&r, 2 * wide) - wide;
        const int low = a < b ? a : b, high = a < b ? b : a;
        char schema[128], text[32];
        snprintf(schema, sizeof schema, "{\"type\": \"integer\", \"minimum\": %d, \"maximum\": %d}",
                 low, high);
        api_error error = {0};
        char *grammar = grammar_of(schema, &error);
        assert_non_null(grammar);
        const int near[] = {low, high, 0, 9, 10, 99, 100, -9, -10, -99, -100, (low + high) / 2};
        for (size_t i = 0; i < sizeof near / sizeof near[0]; i++)
            for (int value = near[i] - 2; value <= near[i] + 2; value++) {
                snprintf(text, sizeof text, "%d", value);
                if (matches(grammar, text) != (value >= low && value <= high))
                    fail_msg("%s and %s\n%s", schema, text, grammar);
            }
        free(grammar);
    }
}

static void unsupported_schemas_are_named(void **state) {
    (void)state;
    static const struct {
        const char *schema, *said;
    } cases[] = {
        {"false", "schema: no value"},
        {"7", "must be an object"},
        {"{\"type\": \"thing\"}", "schema/type"},
        {"{\"type\": [\"string\", 1]}", "schema/type"},
        {"{\"not\": {}}", "schema/not"},
        {"{\"type\": \"number\", \"multipleOf\": 2}", "schema/multipleOf"},
        {"{\"properties\": {\"a\": {\"items\": {\"if\": {}}}}}", "schema/properties/a/items/if"},
        {"{\"type\": \"object\", \"patternProperties\": {}}", "patternProperties"},
        {"{\"type\": \"array\", \"uniqueItems\": true}", "uniqueItems"},
        {"{\"type\": \"array\", \"prefixItems\": []}", "prefixItems"},
        {"{\"allOf\": [{}, {}]}", "allOf"},
        {"{\"anyOf\": []}", "anyOf"},
        {"{\"anyOf\": [{\"type\": \"null\"}, {\"not\": {}}]}", "schema/anyOf/1/not"},
        {"{\"anyOf\": [{}], \"minLength\": 3}", "schema/minLength"},
        {"{\"enum\": []}", "schema/enum"},
        {"{\"enum\": [1], \"type\": \"string\"}", "schema/enum"},
        {"{\"enum\": [1], \"minimum\": 3}", "schema/minimum"},
        {"{\"$ref\": \"#/$defs/none\"}", "schema/$ref"},
        {"{\"$ref\": \"http://example.org/x\"}", "schema/$ref"},
        {"{\"$ref\": 5}", "schema/$ref"},
        {"{\"type\": \"string\", \"minLength\": -1}", "schema/minLength"},
        {"{\"type\": \"string\", \"maxLength\": 1000000}", "schema/maxLength"},
        {"{\"type\": \"string\", \"minLength\": 3, \"maxLength\": 2}", "schema/maxLength"},
        {"{\"type\": \"array\", \"minItems\": \"a\"}", "schema/minItems"},
        {"{\"type\": \"integer\", \"minimum\": 3, \"maximum\": 2}", "no integer"},
        {"{\"type\": \"integer\", \"minimum\": 1e30}", "schema/minimum"},
        {"{\"type\": \"integer\", \"minimum\": \"a\"}", "schema/minimum"},
        {"{\"properties\": []}", "schema/properties"},
        {"{\"required\": \"a\"}", "schema/required"},
        {"{\"required\": [1]}", "schema/required"},
        {"{\"required\": [\"a\"], \"additionalProperties\": false}", "schema/required"},
        {"{\"additionalProperties\": 1}", "schema/additionalProperties"},
        {"{\"pattern\": \"^a|b$\"}", "schema/pattern"},
        {"{\"pattern\": \"(?=a)b\"}", "schema/pattern"},
        {"{\"pattern\": \"\\\\bword\"}", "schema/pattern"},
        {"{\"pattern\": \"(a)\\\\1\"}", "schema/pattern"},
        {"{\"pattern\": \"(a\"}", "schema/pattern"},
        {"{\"pattern\": \"a)\"}", "schema/pattern"},
        {"{\"pattern\": \"[a\"}", "schema/pattern"},
        {"{\"pattern\": \"[z-a]\"}", "schema/pattern"},
        {"{\"pattern\": \"*a\"}", "schema/pattern"},
        {"{\"pattern\": \"a{3,2}\"}", "schema/pattern"},
        {"{\"pattern\": \"a{99999}\"}", "schema/pattern"},
        {"{\"pattern\": \"^[\\\\n]$\"}", "schema/pattern"},
        {"{\"pattern\": \"a\", \"minLength\": 1}", "schema/pattern"},
        {"{\"pattern\": 1}", "schema/pattern"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        api_error error = {0};
        char *grammar = grammar_of(cases[i].schema, &error);
        if (grammar)
            fail_msg("%s was taken:\n%s", cases[i].schema, grammar);
        assert_int_equal(error.status, 400);
        assert_string_equal(error.param, "response_format");
        if (!strstr(error.message, cases[i].said))
            fail_msg("%s: %s", cases[i].schema, error.message);
    }
}

/* Many optional properties, each of which may be missing, also in a recursive schema. */
static void wide_schemas_are_taken(void **state) {
    (void)state;
    for (int recursive = 0; recursive < 2; recursive++) {
        const int n = recursive ? 60 : 500;
        srv_text schema = {0};
        srv_text_put(&schema, "{\"type\": \"object\", \"properties\": {");
        for (int i = 0; i < n; i++)
            srv_text_print(&schema, "%s\"p%d\": {%s}", i > 0 ? ", " : "", i,
                           recursive ? "\"$ref\": \"#\"" : "\"type\": \"object\"");
        srv_text_put(&schema, "}}");
        api_error error = {0};
        char *grammar = grammar_of(schema.bytes, &error);
        if (!grammar)
            fail_msg("%s", error.message);
        assert_true(matches(grammar, "{\"p1\": {}, \"p10\": {}, \"p59\": {}}"));
        assert_false(matches(grammar, "{\"p10\": {}, \"p1\": {}}"));
        free(grammar);
        srv_text_free(&schema);
    }
}

static void deep_schemas_are_refused(void **state) {
    (void)state;
    char schema[4096] = "";
    for (int i = 0; i < 100; i++)
        strcat(schema, "{\"items\": ");
    strcat(schema, "true");
    for (int i = 0; i < 100; i++)
        strcat(schema, "}");
    api_error error = {0};
    assert_null(grammar_of(schema, &error));
    assert_non_null(strstr(error.message, "levels"));
}

/* ------------------------------------------------------------------ grammars of clients */

/* Keys that are none of the names take a rule for each byte of each name. */
static void schemas_with_long_names_are_refused(void **state) {
    (void)state;
    json_t *properties = json_object();
    for (int i = 0; i < 1000; i++) {
        char name[201];
        snprintf(name, sizeof name, "%d%0196d", i, 0);
        json_object_set_new(properties, name, json_true());
    }
    json_t *schema = json_pack("{s:s, s:o, s:b}", "type", "object", "properties", properties,
                               "additionalProperties", 1);
    api_grammar grammar = {0};
    api_error error = {0};
    char rule[API_RULE_NAME];
    assert_false(api_grammar_schema(&grammar, schema, "schema", "#", rule, &error));
    assert_non_null(strstr(error.message, "too large"));
    assert_true(grammar.text.n < 8u << 20);
    srv_text_free(&grammar.text);
    json_decref(schema);
}

static void good_grammars_are_taken(void **state) {
    (void)state;
    static const struct {
        const char *grammar, *good, *bad;
    } cases[] = {
        {"root ::= \"yes\" | \"no\"", "yes", "maybe"},
        {"# comment\nroot ::= word (\" \" word)* # more\nword ::= [a-z]+\n", "ab cd", "Ab"},
        {"root ::= (\n \"a\"\n | \"b\"\n){2}\n", "ab", "a"},
        {"root ::= x{ 2 , 3 } y?\r\nx ::= \"x\"\r\ny ::= [^x\\]\\-\\x41\\u00e9]", "xxz", "xxA"},
        {"root ::= \"(\" root \")\" | \"\"", "(())", "(()"},
        {"root ::= .", "\xC3\xA9", "ab"},
        {"root ::= a-b2 \"\\\"\\\\\\n\"\na-b2 ::= [-+]", "+\"\\\n", "a"},
        {"root ::= \"a\"{3,}", "aaaa", "aa"},
        {"root ::= \"a\"+{2}", "aaa", "a"},
        {"root ::= | \"x\"", "", "y"},
        {"root ::= \"a\" \"b\" | \"a\" \"c\"", "ac", "ad"}, /* without recursion that is fine */
        {"root ::= [a-z]+ (\" \" [a-z]*)* | \"abc\"", "abc d", "1"},
        {"root ::= \"a\" \"+\" root | \"a\" \"-\" root | \"a\"", "a+a-a", "a+"}, /* soon clear */
        {"root ::= word | \"(\" root (\",\" root)* \")\"\nword ::= [a-z]+", "(a,(b,c))", "(a,)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char why[200] = "";
        if (!api_gbnf_check(cases[i].grammar, why, sizeof why))
            fail_msg("%s: %s", cases[i].grammar, why);
        if (!matches(cases[i].grammar, cases[i].good) || matches(cases[i].grammar, cases[i].bad))
            fail_msg("%s", cases[i].grammar);
    }
}

static void bad_grammars_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *grammar, *said;
    } cases[] = {
        {"", "root"},
        {"rot ::= \"a\"", "root"},
        {"root ::= other", "'other' is not defined"},
        {"root ::= \"a\"\nroot ::= \"b\"", "line 2: 'root' is defined twice"},
        {"root = \"a\"", "::="},
        {"root ::= \"a", "not closed"},
        {"root ::= [a", "not closed"},
        {"root ::= [a-", "not closed"},
        {"root ::= []", "empty class"},
        {"root ::= (\"a\"", "not closed"},
        {"root ::= \"a\")", "not expected"},
        {"root ::= \"\\q\"", "escape"},
        {"root ::= \"\\x4\"", "hexadecimal"},
        {"root ::= *", "nothing before"},
        {"root ::= \"\"*", "nothing before"},
        {"root ::= \"a\"{", "no number"},
        {"root ::= \"a\"{2", "not closed"},
        {"root ::= \"a\"{3,2}", "no repetition"}, /* libllama would not return */
        {"root ::= \"a\"{0}", "no repetition"},
        {"root ::= \"a\"{2001}", "repetitions"},
        {"root ::= \"a\"{99999999999999999999999}", "repetitions"},
        {"root ::= (\"a\"{0,100}){100}", "repetitions inside"},
        {"root ::= (\"a\"?)*", "may be empty"},
        {"root ::= a*\na ::= b\nb ::= \"\"", "may be empty"},
        {"root ::= root \"a\"", "left recursion"},
        {"root ::= a\na ::= b \"x\"\nb ::= a", "left recursion"},
        {"root ::= e root \"x\" | \"y\"\ne ::= f\nf ::= \"\"", "left recursion"}, /* likewise */
        /* libllama would follow 2^n ways after n bytes, or at the first one */
        {"root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"d\"", "not in 'root'"},
        {"root ::= a | b\na ::= \"(\" [a-z]+ \",\" root \")\"\nb ::= \"(\" [a-z]* \",\" root \"]\" "
         "| \"x\"",
         "not in 'root'"},
        {"root ::= \"a\" | \"a\" \"b\" root \"b\"", "not in 'root'"}, /* what follows is "b", too */
        {"root ::= x root \"b\" | \"d\"\nx ::= [ad]+", "next character"},
        {"root ::= \"a\"++++++++++++++++++++", "too many ways"},
        {"root ::= ((((((((((\"a\"+)+)+)+)+)+)+)+)+)+)+", "too many ways"},
        {"root ::= a \"1\" | a \"2\"\na ::= b \"1\" | b \"2\"\nb ::= c \"1\" | c \"2\"\nc ::= d "
         "\"1\" "
         "| d \"2\"\nd ::= e \"1\" | e \"2\"\ne ::= f \"1\" | f \"2\"\nf ::= g \"1\" | g \"2\"\ng "
         "::= h "
         "\"1\" | h \"2\"\nh ::= i \"1\" | i \"2\"\ni ::= \"x\"",
         "too many ways"},
        {"root ::= <think>", "tokens"},
        {"root ::= !<[5]>", "tokens"},
        {"root ::= \"a\" }", "not expected"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char why[200] = "";
        if (api_gbnf_check(cases[i].grammar, why, sizeof why))
            fail_msg("%s was taken", cases[i].grammar);
        if (!strstr(why, cases[i].said))
            fail_msg("%s: %s", cases[i].grammar, why);
    }
}

/* Grammars that would cost libllama its stack, or more time than there is. */
static void costly_grammars_are_refused(void **state) {
    (void)state;
    char why[200];
    srv_text deep = {0}, chain = {0}, wide = {0}, large = {0};
    srv_text_put(&deep, "root ::= ");
    for (int i = 0; i < 100000; i++)
        srv_text_put(&deep, "(");
    assert_false(api_gbnf_check(deep.bytes, why, sizeof why));
    assert_non_null(strstr(why, "groups"));
    srv_text_put(&chain, "root ::= r0\n");
    for (int i = 0; i < 20000; i++)
        srv_text_print(&chain, "r%d ::= r%d\n", i, i + 1);
    srv_text_put(&chain, "r20000 ::= \"x\"\n");
    assert_false(api_gbnf_check(chain.bytes, why, sizeof why));
    assert_non_null(strstr(why, "begin with each other"));
    srv_text_put(&wide, "root ::= r0\n"); /* 2^60 ways from the first to the last */
    for (int i = 0; i < 60; i++)
        srv_text_print(&wide, "r%d ::= r%d | r%d\n", i, i + 1, i + 1);
    srv_text_put(&wide, "r60 ::= \"x\"\n");
    assert_false(api_gbnf_check(wide.bytes, why, sizeof why));
    assert_non_null(strstr(why, "too many ways"));
    srv_text_put(&large, "root ::= \"");
    for (int i = 0; i < 100000; i++)
        srv_text_put(&large, "x");
    srv_text_put(&large, "\"{2000}");
    assert_false(api_gbnf_check(large.bytes, why, sizeof why));
    assert_non_null(strstr(why, "too large"));
    srv_text_free(&deep);
    srv_text_free(&chain);
    srv_text_free(&wide);
    srv_text_free(&large);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schemas_match_what_is_valid),
        cmocka_unit_test(integers_match_arithmetic),
        cmocka_unit_test(unsupported_schemas_are_named),
        cmocka_unit_test(wide_schemas_are_taken),
        cmocka_unit_test(deep_schemas_are_refused),
        cmocka_unit_test(schemas_with_long_names_are_refused),
        cmocka_unit_test(good_grammars_are_taken),
        cmocka_unit_test(bad_grammars_are_refused),
        cmocka_unit_test(costly_grammars_are_refused),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
