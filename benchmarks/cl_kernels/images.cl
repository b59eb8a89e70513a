// Compute K[w][i] = exp(-gamma |x_i - u_w|^2) for right-hand rows u_w, U at a time. A work-item has LANES neighbouring
// rows as a vector, and reads the right-hand rows from an image, through the device's cache for images.
//   x_i[j] = X[j ld + i]    ld is a multiple of LANES; items beyond n compute the last vector again and store nothing
//   u_w[4 p .. 4 p + 3]     = pixel (p % width, w lines + p / width), one RGBA pixel of floats; zeros beyond d
//   K[w ld + i]
// A right-hand row has ``lines`` lines of pixels, because d can exceed an image's width.
#ifndef LANES
#define LANES 4  // rows of a work-item (4, 8, 16)
#endif
#ifndef U
#define U 2  // right-hand rows that share one pass over the item's rows
#endif
#define floatl CAT(float, LANES)
#define loadl CAT(vload, LANES)
#define storel CAT(vstore, LANES)

constant sampler_t PIXEL = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_NONE | CLK_FILTER_NEAREST;

// Return features 4 p .. 4 p + 3 of row i of the column-major X, zeros beyond d.
inline float4 features(const int p, const int i, const int d, const int ld, global const float *restrict X) {
  float part[4];
  for (int c = 0; c < 4; ++c) part[c] = 4 * p + c < d ? X[(size_t)(4 * p + c) * ld + i] : 0.0f;
  return vload4(0, part);
}

// Copy the right-hand rows into the image, over a range of (pixels, W).
kernel void copy_to_image(const int d, global const int *restrict rows, const int ld, global const float *restrict X,
                          const int lines, write_only image2d_t image) {
  const int p = get_global_id(0), w = get_global_id(1), width = get_image_width(image);
  write_imagef(image, (int2)(p % width, w * lines + p / width), features(p, rows[w], d, ld, X));
}

// Copy the right-hand rows into a buffer in the order of the image's pixels, over a range of (pixels, W).
kernel void copy_to_buffer(const int d, global const int *restrict rows, const int ld, global const float *restrict X,
                           global float4 *restrict packed) {
  const size_t p = get_global_id(0), w = get_global_id(1);
  packed[w * get_global_size(0) + p] = features(p, rows[w], d, ld, X);
}

kernel __attribute__((vec_type_hint(floatl))) void images(
    const int n, const int d, const int W, read_only image2d_t image, const float gamma, const int ld,
    global const float *restrict X, const int lines, global float *restrict K) {
  const size_t i = get_global_id(0) * LANES, from = min(i, (size_t)(ld - LANES));
  const int width = get_image_width(image);
  for (int w0 = 0; w0 < W; w0 += U) {
    floatl sum[U];
#pragma unroll
    for (int u = 0; u < U; ++u) sum[u] = (floatl)0.0f;
    for (int line = 0, j = 0; line < lines; ++line) {
      for (int p = 0; p < width && j < d; ++p, j += 4) {
        global const float *restrict columns = X + (size_t)j * ld + from;
        const floatl zero = (floatl)0.0f;
        const floatl x0 = loadl(0, columns), x1 = j + 1 < d ? loadl(0, columns + (size_t)1 * ld) : zero;
        const floatl x2 = j + 2 < d ? loadl(0, columns + (size_t)2 * ld) : zero;
        const floatl x3 = j + 3 < d ? loadl(0, columns + (size_t)3 * ld) : zero;
#pragma unroll
        for (int u = 0; u < U; ++u) {
          const float4 pixel = read_imagef(image, PIXEL, (int2)(p, min(w0 + u, W - 1) * lines + line));
          const floatl a = x0 - pixel.x, b = x1 - pixel.y, c = x2 - pixel.z, e = x3 - pixel.w;
          sum[u] = fma(e, e, fma(c, c, fma(b, b, fma(a, a, sum[u]))));
        }
      }
    }
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (w0 + u < W && i < n) storel(exp(-gamma * sum[u]), 0, K + (size_t)(w0 + u) * ld + i);
  }
}
