// The avx2 kernels. CMakeLists.txt gives this unit its own instruction-set flags.
#include "vec_avx2.hpp"

namespace octavo::avx2 {
#include "gemm_impl.hpp"
#include "rows_impl.hpp"
#include "attention_impl.hpp"
#include "table_impl.hpp"
}  // namespace octavo::avx2

namespace octavo {
using namespace octavo::avx2;
const Kernels kAvx2Kernels = OCTAVO_KERNELS("avx2");
}  // namespace octavo
