/* text_table.h: prints tables with aligned columns, and human-readable numbers. */
#ifndef CLI_OUTPUT_TEXT_TABLE_H
#define CLI_OUTPUT_TEXT_TABLE_H

#include "output/report.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct cli_column {
    const char *title;
    bool right; /* align right: numbers */
} cli_column;

typedef struct cli_table {
    const cli_column *columns; /* borrowed */
    size_t n_columns;
    char **cells; /* row after row */
    size_t n_cells, capacity;
    bool failed; /* out of memory: reported by cli_table_print */
} cli_table;

void cli_table_start(cli_table *table, const cli_column *columns, size_t n_columns);
/* The next cell; a row is complete after n_columns of them. */
void cli_table_cell(cli_table *table, const char *format, ...) CLI_PRINTF(2, 3);
/* Prints and frees. Returns an exit status. */
int cli_table_print(cli_table *table, FILE *file);

typedef struct cli_text {
    char text[32];
} cli_text;

cli_text cli_bytes(uint64_t bytes);   /* "512 B", "12.3 MiB" */
cli_text cli_bits(double bits);       /* "4.250"; "-" if negative: unsupported */
cli_text cli_rel_error(double error); /* "1.20e-03"; "-" if NaN: not checked */
/* Half of an interval: "0.0120" with 4 digits; "-" if NaN: one number has no spread. */
cli_text cli_half(double half, int n_digits);

#endif
