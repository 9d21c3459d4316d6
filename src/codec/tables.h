/* Quantizers for a unit normal variable, which a rotated coordinate divided by its row's RMS nearly
 * is. */
#ifndef QUIRE_CODEC_TABLES_H
#define QUIRE_CODEC_TABLES_H

#include <stdint.h>

/* Step of the best uniform quantizer with 2^bits levels. For 8 bits the row's largest coordinate
 * decides its scale, so that this is only a unit. */
static inline float quire__uniform_step(int bits) {
    return bits == 8 ? 0.031f : bits == 4 ? 0.3350f : bits == 3 ? 0.5860f : 0.9955f;
}

/* A row has its own largest coordinate, and its best step is not the distribution's: below 8
 * bits a scale is the row's RMS times whichever of these leaves the least error (at 4 bits 19 %
 * less than 1 alone for D 64, 11 % for D 128, 6 % for D 256). */
static const float quire__uniform_fits[] = {0.85f, 0.90f, 0.95f, 1.0f, 1.05f, 1.10f, 1.15f};
enum { QUIRE_UNIFORM_FITS = sizeof quire__uniform_fits / sizeof *quire__uniform_fits };

/* Lloyd-Max levels rounded to int8 (value = level * unit): the rounding costs less than 0.1 % of
 * the distortion. */
typedef struct quire_book {
    int8_t level[16];
    float unit;
    /* Midpoints of the exact levels; a code is the number of edges below the coordinate. */
    float edge[15];
} quire_book;

static const quire_book quire__books[3] = {
    {{-40, -12, 12, 40}, 0.03776044f, {-0.981599f, 0, 0.981599f}},
    {{-88, -55, -31, -10, 10, 31, 55, 88},
     0.02445393f,
     {-1.747927f, -1.049957f, -0.500550f, 0, 0.500550f, 1.049957f, 1.747927f}},
    {{-104, -79, -62, -48, -36, -25, -15, -5, 5, 15, 25, 36, 48, 62, 79, 104},
     0.02622447f,
     {-2.400803f, -1.843532f, -1.437139f, -1.099286f, -0.799550f, -0.522404f, -0.258222f, 0,
      0.258222f, 0.522404f, 0.799550f, 1.099286f, 1.437139f, 1.843532f, 2.400803f}},
};

static inline const quire_book *quire__book(int bits) { return &quire__books[bits - 2]; }

#define QUIRE_SQRT_HALF_PI 1.25331413731550025121f

#endif
