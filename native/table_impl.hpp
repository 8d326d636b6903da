// The function table of one instruction set; included last by its translation unit.
#pragma once

#define OCTAVO_INT(W) {gemm_int<W, 1>, gemm_int<W, 4>}
#define OCTAVO_UNPACKED(W) {gemm_unpacked<W, 1>, gemm_unpacked<W, 4>}
#define OCTAVO_FLOAT(W) {gemm_float<W, 1>, gemm_float<W, 4>}
#define OCTAVO_KERNELS(label)                                                              \
  {                                                                                        \
    label,                                                                                 \
        {OCTAVO_INT(WeightsQ41), OCTAVO_INT(WeightsQ4), OCTAVO_INT(WeightsQ5),             \
         OCTAVO_INT(WeightsQ8), OCTAVO_INT(WeightsQ4K), OCTAVO_INT(WeightsQ6K)},           \
        {OCTAVO_UNPACKED(WeightsQ41), OCTAVO_UNPACKED(WeightsQ4),                          \
         OCTAVO_UNPACKED(WeightsQ5), OCTAVO_UNPACKED(WeightsQ8),                           \
         OCTAVO_UNPACKED(WeightsQ4K), OCTAVO_UNPACKED(WeightsQ6K),                         \
         OCTAVO_FLOAT(WeightsF32), OCTAVO_FLOAT(WeightsF16), OCTAVO_FLOAT(WeightsBF16)},   \
        norm_pack, pack_group, gate_pack,                                                  \
        {attention<Attend, Bf16>, attention<Attend, Int8>},                                \
        {attention<Part, Bf16>, attention<Part, Int8>}, probe_int8                         \
  }
