/* http_reply.h: sending replies. Each function sets request->status, and returns what the handler
 * of libmicrohttpd must return. */
#ifndef SERVER_HTTP_HTTP_REPLY_H
#define SERVER_HTTP_HTTP_REPLY_H

#include "http/http_server.h"

#include <microhttpd.h>

/* Adds the headers that all replies have, and queues it. Takes the response over; NULL: out of
 * memory, the connection is closed. */
enum MHD_Result srv_reply(srv_request *request, int status, struct MHD_Response *response);
/* A malloced text, freed after it was sent; NULL: out of memory, and the reply says so. */
enum MHD_Result srv_reply_text(srv_request *request, int status, const char *type, char *text,
                               size_t n_text);
enum MHD_Result srv_reply_json(srv_request *request, int status, char *json);
/* An error in OpenAI's form. */
enum MHD_Result srv_reply_error(srv_request *request, const api_error *error);

/* An error with a message, of the type and code that its status has. */
api_error srv_error(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
