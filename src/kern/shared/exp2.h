/* Minimax polynomials of 2^f, constant term first; X is applied to each coefficient. f is what x
 * has above or below the nearest integer, |f| <= 1/2, or what it has above the integer below it
 * (FLOOR), 0 <= f <= 1. Relative error of either: degree 3 (weights rounded to u8) 7.5e-5, degree 4
 * (fp16) 2.6e-6, degree 5 7.5e-8. */
#ifndef QUIRE_KERN_SHARED_EXP2_H
#define QUIRE_KERN_SHARED_EXP2_H

#define EXP2_DEGREE_3(X)                                                                           \
    X(0.9999280571937561f), X(0.6932609677314758f), X(0.2426111251115799f), X(0.0551716685295105f)
#define EXP2_DEGREE_4(X)                                                                           \
    X(0.9999992847442627f), X(0.6931217908859253f), X(0.240247443318367f),                         \
        X(0.05591785907745361f), X(0.009570102207362652f)
#define EXP2_DEGREE_5(X)                                                                           \
    X(1.0000001192092896f), X(0.6931469440460205f), X(0.24022120237350464f),                       \
        X(0.05550713092088699f), X(0.009675540961325169f), X(0.0013276472454890609f)

#define EXP2_FLOOR_DEGREE_3(X)                                                                     \
    X(0.9999251961708069f), X(0.6958335638046265f), X(0.22606715559959412f), X(0.07802452147006989f)
#define EXP2_FLOOR_DEGREE_5(X)                                                                     \
    X(0.9999999403953552f), X(0.6931530833244324f), X(0.24015361070632935f),                       \
        X(0.05582631751894951f), X(0.00898933969438076f), X(0.0018775766948238015f)

#endif
