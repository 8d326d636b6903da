#include "pack.hpp"

#include <cmath>
#include <cstring>

namespace octavo {
namespace {

// Type numbers of the GGUF format.
enum GgufType {
  kF32 = 0,
  kF16 = 1,
  kQ40 = 2,
  kQ41 = 3,
  kQ50 = 6,
  kQ80 = 8,
  kQ4K = 12,
  kQ6K = 14,
  kBf16 = 30
};

struct TypeInfo {
  int type;
  Format format;
  int block_elements;
  int block_bytes;
};
constexpr TypeInfo kTypes[] = {
    {kF32, Format::f32, 1, 4},     {kF16, Format::f16, 1, 2},     {kQ40, Format::q4_0, 32, 18},
    {kQ41, Format::q4_1, 32, 20},  {kQ50, Format::q5_0, 32, 22},  {kQ80, Format::q8_0, 32, 34},
    {kQ4K, Format::q4_k, 256, 144}, {kQ6K, Format::q6_k, 256, 210}, {kBf16, Format::bf16, 1, 2},
};

const TypeInfo* find_type(int type) {
  for (const TypeInfo& info : kTypes) {
    if (info.type == type) return &info;
  }
  return nullptr;
}

float half(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  float value;
  if (exponent == 31) {
    value = mantissa ? NAN : INFINITY;
  } else if (exponent == 0) {
    value = std::ldexp(float(mantissa), -24);
  } else {
    value = std::ldexp(float(mantissa | 1024), exponent - 25);
  }
  return bits & 0x8000 ? -value : value;
}

float widen_bf16(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

uint16_t load16(const uint8_t* p) {
  uint16_t x;
  std::memcpy(&x, p, 2);
  return x;
}

// One group of 32 weights as the file means it: unsigned quants and up to two levels of scales.
struct Group {
  uint8_t quants[kGroup];
  uint16_t scale = 0;    // f16: block scale, or super-block scale
  uint16_t minimum = 0;  // f16: block minimum, or super-block minimum
  uint8_t sub[2] = {0, 0};  // Q4_K: scale, minimum; Q6_K: the two int8 scales
};

void split_nibbles(const uint8_t* bytes, uint8_t* quants) {
  for (int i = 0; i < 16; ++i) {
    quants[i] = bytes[i] & 15;
    quants[i + 16] = bytes[i] >> 4;
  }
}

void decode_q4k(const uint8_t* row, int group, Group& out) {
  const uint8_t* block = row + size_t(group / 8) * 144;
  const uint8_t* packed = block + 4;
  const int j = group % 8;
  out.scale = load16(block);
  out.minimum = load16(block + 2);
  if (j < 4) {
    out.sub[0] = packed[j] & 63;
    out.sub[1] = packed[j + 4] & 63;
  } else {
    out.sub[0] = uint8_t((packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4);
    out.sub[1] = uint8_t((packed[j + 4] >> 4) | (packed[j] >> 6) << 4);
  }
  const uint8_t* bytes = block + 16 + 32 * (j / 2);
  for (int i = 0; i < kGroup; ++i) out.quants[i] = j % 2 ? bytes[i] >> 4 : bytes[i] & 15;
}

void decode_q6k(const uint8_t* row, int group, Group& out) {
  const uint8_t* block = row + size_t(group / 8) * 210;
  const int part = group % 8 / 4, field = group % 4;
  const uint8_t* low = block + 64 * part + 32 * (field % 2);
  const uint8_t* high = block + 128 + 32 * part;
  for (int i = 0; i < kGroup; ++i) {
    const int nibble = field < 2 ? low[i] & 15 : low[i] >> 4;
    out.quants[i] = uint8_t(nibble | ((high[i] >> (2 * field)) & 3) << 4);
  }
  out.sub[0] = block[192 + 8 * part + 2 * field];
  out.sub[1] = block[192 + 8 * part + 2 * field + 1];
  out.scale = load16(block + 208);
}

void decode_group(int type, const uint8_t* row, int group, Group& out) {
  switch (type) {
    case kQ40: {
      const uint8_t* block = row + size_t(group) * 18;
      out.scale = load16(block);
      split_nibbles(block + 2, out.quants);
      break;
    }
    case kQ41: {
      const uint8_t* block = row + size_t(group) * 20;
      out.scale = load16(block);
      out.minimum = load16(block + 2);
      split_nibbles(block + 4, out.quants);
      break;
    }
    case kQ50: {
      const uint8_t* block = row + size_t(group) * 22;
      uint32_t fifth;
      std::memcpy(&fifth, block + 2, 4);
      out.scale = load16(block);
      split_nibbles(block + 6, out.quants);
      for (int i = 0; i < kGroup; ++i) out.quants[i] |= uint8_t(((fifth >> i) & 1) << 4);
      break;
    }
    case kQ80: {
      const uint8_t* block = row + size_t(group) * 34;
      out.scale = load16(block);
      for (int i = 0; i < kGroup; ++i) out.quants[i] = uint8_t(block[2 + i] ^ 0x80);
      break;
    }
    case kQ4K: decode_q4k(row, group, out); break;
    default: decode_q6k(row, group, out); break;
  }
}

// The value of "no weight": what the missing columns of a last panel hold.
uint8_t zero_of(Format format) {
  switch (format) {
    case Format::q4_0: return 8;
    case Format::q5_0: return 16;
    case Format::q8_0: return 128;
    case Format::q6_k: return 32;
    default: return 0;
  }
}

void put_quants(Format format, const Group* groups, uint8_t* out) {
  for (int j = 0; j < 8; ++j) {
    for (int c = 0; c < 16; ++c) {
      const uint8_t* low = groups[c].quants + 4 * j;
      const uint8_t* high = groups[c + 16].quants + 4 * j;
      for (int k = 0; k < 4; ++k) {
        const int at = 4 * c + k;
        if (format == Format::q8_0) {
          out[128 * j + at] = low[k];
          out[128 * j + 64 + at] = high[k];
          continue;
        }
        out[64 * j + at] = uint8_t((low[k] & 15) | (high[k] & 15) << 4);
        if (format == Format::q5_0) {
          uint8_t* bits = out + 512 + 16 * j + at / 8;
          bits[0] |= uint8_t((low[k] >> 4) << (at % 8));
          bits[8] |= uint8_t((high[k] >> 4) << (at % 8));
        } else if (format == Format::q6_k) {
          const int shift = j % 2 ? 4 : 0;
          out[512 + 64 * (j / 2) + at] |= uint8_t((low[k] >> 4 | (high[k] >> 4) << 2) << shift);
        }
      }
    }
  }
}

void put_group(Format format, const Group* groups, uint8_t* header, uint8_t* out) {
  std::memset(out, 0, size_t(format_info(format).group_bytes));
  put_quants(format, groups, out);
  for (int n = 0; n < kPanel; ++n) {
    const Group& g = groups[n];
    switch (format) {
      case Format::q4_0: std::memcpy(out + 512 + 2 * n, &g.scale, 2); break;
      case Format::q5_0: std::memcpy(out + 640 + 2 * n, &g.scale, 2); break;
      case Format::q8_0: std::memcpy(out + 1024 + 2 * n, &g.scale, 2); break;
      case Format::q4_1:
        std::memcpy(out + 512 + 2 * n, &g.scale, 2);
        std::memcpy(out + 576 + 2 * n, &g.minimum, 2);
        break;
      case Format::q4_k:
        std::memcpy(header + 2 * n, &g.scale, 2);
        std::memcpy(header + 64 + 2 * n, &g.minimum, 2);
        out[512 + n] = g.sub[0];
        out[544 + n] = g.sub[1];
        break;
      default:
        std::memcpy(header + 2 * n, &g.scale, 2);
        out[768 + n] = g.sub[0];
        out[800 + n] = g.sub[1];
        break;
    }
  }
}

void pack_float_panel(const RawTensor& t, int row, uint8_t* out) {
  const size_t width = t.type == kF32 ? 4 : 2;
  const int padded = (t.columns + kGroup - 1) / kGroup * kGroup;
  std::memset(out, 0, size_t(padded) * kPanel * width);
  for (int n = 0; n < kPanel && row + n < t.rows; ++n) {
    const uint8_t* from = t.data + size_t(row + n) * t.columns * width;
    for (int k = 0; k < t.columns; ++k) {
      std::memcpy(out + (size_t(k) * kPanel + n) * width, from + size_t(k) * width, width);
    }
  }
}

}  // namespace

bool known_type(int type) { return find_type(type) != nullptr; }

Format format_of(int type) { return find_type(type)->format; }

bool whole_blocks(int type, int columns) { return columns % find_type(type)->block_elements == 0; }

size_t row_bytes(int type, int columns) {
  const TypeInfo* info = find_type(type);
  return size_t(columns / info->block_elements) * size_t(info->block_bytes);
}

void pack_panel(const RawTensor& t, int row, uint8_t* out) {
  const Format format = format_of(t.type);
  if (int(format) >= kNumIntFormats) return pack_float_panel(t, row, out);
  const FormatInfo info = format_info(format);
  const size_t stride = row_bytes(t.type, t.columns);
  Group groups[kPanel];
  uint8_t* header = out;
  for (int g = 0; g < t.columns / kGroup; ++g) {
    if (info.super_groups && g % info.super_groups == 0) {
      header = out;
      out += info.super_bytes;
    }
    for (int n = 0; n < kPanel; ++n) {
      if (row + n < t.rows) {
        decode_group(t.type, t.data + size_t(row + n) * stride, g, groups[n]);
      } else {
        groups[n] = Group();
        std::memset(groups[n].quants, zero_of(format), kGroup);
      }
    }
    put_group(format, groups, header, out);
    out += info.group_bytes;
  }
}

void dequantize_row(const RawTensor& t, int row, float* out) {
  const uint8_t* from = t.data + size_t(row) * row_bytes(t.type, t.columns);
  if (t.type == kF32) {
    std::memcpy(out, from, size_t(t.columns) * 4);
    return;
  }
  if (t.type == kF16 || t.type == kBf16) {
    for (int k = 0; k < t.columns; ++k) {
      const uint16_t bits = load16(from + 2 * size_t(k));
      out[k] = t.type == kF16 ? half(bits) : widen_bf16(bits);
    }
    return;
  }
  const int zero = zero_of(format_of(t.type));
  Group group;
  for (int g = 0; g < t.columns / kGroup; ++g) {
    decode_group(t.type, from, g, group);
    const float scale = half(group.scale);
    for (int k = 0; k < kGroup; ++k) {
      const float quant = float(int(group.quants[k]) - zero);
      float& value = out[g * kGroup + k];
      if (t.type == kQ4K) {
        value = scale * float(group.sub[0]) * quant - half(group.minimum) * float(group.sub[1]);
      } else if (t.type == kQ6K) {
        value = scale * float(int8_t(group.sub[k / 16])) * quant;
      } else {
        value = t.type == kQ41 ? scale * quant + half(group.minimum) : scale * quant;
      }
    }
  }
}

}  // namespace octavo
