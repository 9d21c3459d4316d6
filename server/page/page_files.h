/* page_files.h: the files of the page, as they were when the program was built. */
#ifndef SERVER_PAGE_PAGE_FILES_H
#define SERVER_PAGE_PAGE_FILES_H

#include <stddef.h>

typedef struct srv_page_file {
    const char *name; /* "index.html" */
    const unsigned char *bytes;
    size_t n_bytes;
} srv_page_file;

extern const srv_page_file srv_page_files[]; /* ended by a NULL name */

#endif
