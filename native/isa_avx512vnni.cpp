// The avx512vnni kernels. CMakeLists.txt gives this unit its own instruction-set flags.
#include "vec_avx512.hpp"

namespace octavo::avx512vnni {
#include "gemm_impl.hpp"
#include "rows_impl.hpp"
#include "attention_impl.hpp"
#include "table_impl.hpp"
}  // namespace octavo::avx512vnni

namespace octavo {
using namespace octavo::avx512vnni;
const Kernels kAvx512VnniKernels = OCTAVO_KERNELS("avx512vnni");
}  // namespace octavo
