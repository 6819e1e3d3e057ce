/* SPDX-License-Identifier: Apache-2.0 */
/* The definitions (ref_ops.h). */
#include "ref_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double *doubles(int64_t n)
{
    double *p = calloc((size_t)(n > 0 ? n : 1), sizeof *p);
    if (p == NULL) {
        abort();
    }
    return p;
}

void ref_linear(const double *x, const double *w, const double *bias, bool accumulate, int64_t t, int64_t k, int64_t n,
                double *y, double *magnitude)
{
    for (int64_t i = 0; i < t; i++) {
        for (int64_t j = 0; j < n; j++) {
            double sum = accumulate ? y[i * n + j] : 0.0;
            double size = fabs(sum);
            if (bias != NULL) {
                sum += bias[j];
                size += fabs(bias[j]);
            }
            for (int64_t l = 0; l < k; l++) {
                double term = x[i * k + l] * w[j * k + l];
                sum += term;
                size += fabs(term);
            }
            y[i * n + j] = sum;
            magnitude[i * n + j] = size;
        }
    }
}

void ref_rmsnorm(const double *x, const double *gamma, double eps, int64_t groups, int64_t t, int64_t c, double *y)
{
    int64_t width = c / groups;
    for (int64_t v = 0; v < t * groups; v++) {
        double sum = 0.0;
        for (int64_t i = 0; i < width; i++) {
            sum += x[v * width + i] * x[v * width + i];
        }
        for (int64_t i = 0; i < width; i++) {
            y[v * width + i] = x[v * width + i] / sqrt(sum / (double)width + eps) * gamma[i];
        }
    }
}

void ref_rope(double *x, int64_t t, int64_t heads, int64_t d, int64_t half, const double *cos, const double *sin,
              double *magnitude)
{
    for (int64_t i = 0; i < t * heads * d; i++) {
        magnitude[i] = fabs(x[i]);
    }
    for (int64_t s = 0; s < t; s++) {
        for (int64_t h = 0; h < heads; h++) {
            for (int64_t i = 0; i < half; i++) {
                int64_t first = (s * heads + h) * d + i, second = first + half;
                double a = x[first], b = x[second], c = cos[s * half + i], n = sin[s * half + i];
                x[first] = a * c - b * n;
                x[second] = b * c + a * n;
                magnitude[first] = fabs(a * c) + fabs(b * n);
                magnitude[second] = fabs(b * c) + fabs(a * n);
            }
        }
    }
}

/* One query of one head. */
static void attend(const double *q, const double *k, const double *v, int64_t first, int64_t last, int64_t stride,
                   int64_t d, double scale, double *p, double *o, double *magnitude)
{
    double peak = -INFINITY, sum = 0.0;
    for (int64_t s = first; s <= last; s++) {
        double score = 0.0;
        for (int64_t i = 0; i < d; i++) {
            score += q[i] * k[s * stride + i];
        }
        p[s] = score * scale;
        peak = fmax(peak, p[s]);
    }
    for (int64_t s = first; s <= last; s++) {
        p[s] = exp(p[s] - peak);
        sum += p[s];
    }
    for (int64_t i = 0; i < d; i++) {
        o[i] = 0.0;
        magnitude[i] = 0.0;
        for (int64_t s = first; s <= last; s++) {
            o[i] += p[s] / sum * v[s * stride + i];
            magnitude[i] += p[s] / sum * fabs(v[s * stride + i]);
        }
    }
}

void ref_attention(const double *q, const double *k, const double *v, int64_t t, int64_t heads, int64_t kv_heads,
                   int64_t d, double scale, int64_t window, double *o, double *magnitude)
{
    double *p = doubles(t);
    for (int64_t h = 0; h < heads; h++) {
        int64_t kv = h / (heads / kv_heads) * d;
        for (int64_t s = 0; s < t; s++) {
            int64_t first = window > 0 && s - window + 1 > 0 ? s - window + 1 : 0;
            int64_t at = s * heads * d + h * d;
            attend(q + at, k + kv, v + kv, first, s, kv_heads * d, d, scale, p, o + at, magnitude + at);
        }
    }
    free(p);
}

void ref_silu_mul(const double *gate, const double *up, int64_t n, double *y)
{
    for (int64_t i = 0; i < n; i++) {
        y[i] = gate[i] / (1.0 + exp(-gate[i])) * up[i];
    }
}

void ref_gather_rows(const double *table, const int32_t *ids, int64_t t, int64_t c, double *y)
{
    for (int64_t i = 0; i < t; i++) {
        memcpy(y + i * c, table + ids[i] * c, (size_t)c * sizeof *y);
    }
}

void ref_column_sumsq(const double *x, int64_t t, int64_t k, double *sumsq)
{
    for (int64_t j = 0; j < k; j++) {
        sumsq[j] = 0.0;
        for (int64_t i = 0; i < t; i++) {
            sumsq[j] += x[i * k + j] * x[i * k + j];
        }
    }
}

void ref_xtx(const double *x, int64_t t, int64_t k, double *h, double *magnitude)
{
    for (int64_t i = 0; i < t; i++) {
        for (int64_t a = 0; a < k; a++) {
            for (int64_t b = 0; b < k; b++) {
                h[a * k + b] += x[i * k + a] * x[i * k + b];
                magnitude[a * k + b] += fabs(x[i * k + a] * x[i * k + b]);
            }
        }
    }
}

int64_t ref_xtx_index(int64_t i, int64_t j, int64_t tile)
{
    int64_t row = i / tile, col = j / tile;
    return ((row * (row + 1) / 2 + col) * tile + i % tile) * tile + j % tile;
}

/* a (N,N) to its inverse, pivots by size. */
static void invert(double *a, int64_t n, double *inverse)
{
    for (int64_t i = 0; i < n * n; i++) {
        inverse[i] = i / n == i % n ? 1.0 : 0.0;
    }
    for (int64_t p = 0; p < n; p++) {
        int64_t best = p;
        for (int64_t i = p + 1; i < n; i++) {
            best = fabs(a[i * n + p]) > fabs(a[best * n + p]) ? i : best;
        }
        for (int64_t j = 0; j < n && best != p; j++) {
            double x = a[p * n + j], y = inverse[p * n + j];
            a[p * n + j] = a[best * n + j];
            inverse[p * n + j] = inverse[best * n + j];
            a[best * n + j] = x;
            inverse[best * n + j] = y;
        }
        double pivot = a[p * n + p];
        for (int64_t j = 0; j < n; j++) {
            a[p * n + j] /= pivot;
            inverse[p * n + j] /= pivot;
        }
        for (int64_t i = 0; i < n; i++) {
            double factor = a[i * n + p];
            for (int64_t j = 0; j < n && i != p; j++) {
                a[i * n + j] -= factor * a[p * n + j];
                inverse[i * n + j] -= factor * inverse[p * n + j];
            }
        }
    }
}

bool ref_inverse_factor(const double *h, int64_t n, double *u)
{
    double *a = doubles(n * n), *inverse = doubles(n * n);
    bool positive = true;
    memcpy(a, h, (size_t)(n * n) * sizeof *a);
    memset(u, 0, (size_t)(n * n) * sizeof *u);
    invert(a, n, inverse);
    for (int64_t i = 0; i < n && positive; i++) {
        double pivot = inverse[i * n + i];
        for (int64_t l = 0; l < i; l++) {
            pivot -= u[l * n + i] * u[l * n + i];
        }
        positive = pivot > 0.0 && isfinite(pivot);
        u[i * n + i] = sqrt(pivot);
        for (int64_t j = i + 1; j < n && positive; j++) {
            double sum = inverse[i * n + j];
            for (int64_t l = 0; l < i; l++) {
                sum -= u[l * n + i] * u[l * n + j];
            }
            u[i * n + j] = sum / u[i * n + i];
        }
    }
    free(a);
    free(inverse);
    return positive;
}

void ref_subtract_product(const double *a, const double *b, int64_t m, int64_t k, int64_t n, double *c,
                          double *magnitude)
{
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            magnitude[i * n + j] = fabs(c[i * n + j]);
            for (int64_t l = 0; l < k; l++) {
                c[i * n + j] -= a[i * k + l] * b[l * n + j];
                magnitude[i * n + j] += fabs(a[i * k + l] * b[l * n + j]);
            }
        }
    }
}

static double log_sum_exp(const double *row, int64_t v, int32_t *top)
{
    double sum = 0.0;
    *top = 0;
    for (int64_t i = 1; i < v; i++) {
        *top = row[i] > row[*top] ? (int32_t)i : *top;
    }
    for (int64_t i = 0; i < v; i++) {
        sum += exp(row[i] - row[*top]);
    }
    return row[*top] + log(sum);
}

/* A logit less the maximum is rounded, which shifts its exponential by that much. */
double ref_nll(const double *row, int64_t v, int32_t target, int32_t *top, double *magnitude)
{
    double total = log_sum_exp(row, v, top);
    *magnitude = 1.0;
    for (int64_t i = 0; i < v; i++) {
        *magnitude += exp(row[i] - total) * fabs(row[i] - row[*top]);
    }
    return total - row[target];
}

double ref_kl(const double *reference, const double *model, int64_t v, double *magnitude)
{
    int32_t top_a, top_b;
    double log_a = log_sum_exp(reference, v, &top_a);
    double log_b = log_sum_exp(model, v, &top_b);
    double kl = 0.0;
    *magnitude = 1.0;
    for (int64_t i = 0; i < v; i++) {
        double p = exp(reference[i] - log_a), q = exp(model[i] - log_b);
        double a = reference[i] - reference[top_a], b = model[i] - model[top_b];
        if (p > 0.0) {
            kl += p * ((reference[i] - log_a) - (model[i] - log_b));
            *magnitude += p * (fabs(a) + fabs(a - b)) + p * fabs(a) * fabs(a - b);
        }
        *magnitude += q > 0.0 ? q * fabs(b) : 0.0;
    }
    return kl;
}
