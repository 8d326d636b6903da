// Raw GGUF blocks → packed panels, without loss; and single rows → float for the embedding.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.hpp"

namespace octavo {

// A tensor as the file stores it: `rows` rows of `columns` elements, GGUF type number `type`.
struct RawTensor {
  int type = 0;
  int rows = 0;
  int columns = 0;
  const uint8_t* data = nullptr;
};

// False for a type that this backend does not know.
bool known_type(int type);
Format format_of(int type);
// Whether `columns` elements are whole blocks, as every row must be.
bool whole_blocks(int type, int columns);
size_t row_bytes(int type, int columns);
// Packs rows [row, row + 32) (missing ones as zeros) of `groups` = ceil(columns / 32) groups.
void pack_panel(const RawTensor& tensor, int row, uint8_t* out);
void dequantize_row(const RawTensor& tensor, int row, float* out);

}  // namespace octavo
