/* page_route.c: see page_route.h. */
#include "http/page_route.h"

#include "http/http_reply.h"
#include "page/page_files.h"

#include <stdio.h>
#include <string.h>

/* The page loads nothing from elsewhere, talks to this server only, and cannot be framed. Nothing
 * inline runs: what a model writes could not either, if it ever got into the page as markup. */
static const char policy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'";

static const srv_page_file *find(const char *path) {
    const char *name = strcmp(path, "/") == 0 ? "index.html" : path + (path[0] == '/');
    for (const srv_page_file *file = srv_page_files; file->name; file++)
        if (strcmp(file->name, name) == 0)
            return file;
    return NULL;
}

bool srv_page_has(const char *path) { return find(path) != NULL; }

static const char *type_of(const char *name) {
    static const char *const types[][2] = {{".html", "text/html; charset=utf-8"},
                                           {".css", "text/css; charset=utf-8"},
                                           {".js", "text/javascript; charset=utf-8"},
                                           {".svg", "image/svg+xml"}};
    const char *ending = strrchr(name, '.');
    for (size_t i = 0; ending && i < sizeof types / sizeof *types; i++)
        if (strcmp(ending, types[i][0]) == 0)
            return types[i][1];
    return "application/octet-stream";
}

/* FNV-1a of the bytes, in quotes. */
static void make_tag(const srv_page_file *file, char tag[24]) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < file->n_bytes; i++)
        hash = (hash ^ file->bytes[i]) * 0x100000001b3u;
    snprintf(tag, 24, "\"%016llx\"", (unsigned long long)hash);
}

enum MHD_Result srv_page_answer(srv_request *request) {
    const srv_page_file *file = find(request->path);
    char tag[24];
    make_tag(file, tag);
    const char *held = srv_header(request, MHD_HTTP_HEADER_IF_NONE_MATCH);
    const bool is_held = held && strstr(held, tag);
    const size_t n = is_held ? 0 : file->n_bytes;
    struct MHD_Response *response =
        MHD_create_response_from_buffer(n, (void *)file->bytes, MHD_RESPMEM_PERSISTENT);
    if (!response)
        return MHD_NO;
    request->reply_bytes = n;
    MHD_add_response_header(response, MHD_HTTP_HEADER_ETAG, tag);
    /* Ask each time: a new program has a new page. */
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    MHD_add_response_header(response, "Content-Security-Policy", policy);
    MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
    if (!is_held)
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type_of(file->name));
    return srv_reply(request, is_held ? 304 : 200, response);
}
