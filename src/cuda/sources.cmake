# SPDX-License-Identifier: Apache-2.0
# The CUDA backend, relative to src/: compiled by nvcc into the library, and by g++ for the host executor.
include(${CMAKE_CURRENT_LIST_DIR}/../../cmake/codecs.cmake)
atomo_codec_files(codecs 1 cuda/)
set(ATOMO_CUDA_SOURCES
  ${codecs}
  cuda/atom_body.cu
  cuda/atoms.cu
  cuda/atoms_add.cu
  cuda/atoms_decode.cu
  cuda/atoms_content.cu
  cuda/atoms_encode.cu
  cuda/atoms_find.cu
  cuda/atoms_plan.cu
  cuda/atoms_rank.cu
  cuda/backend.cu
  cuda/chunk_draw.cu
  cuda/chunk_put.cu
  cuda/chunk_topk_decode.cu
  cuda/container.cu
  cuda/container_begin.cu
  cuda/container_open.cu
  cuda/coordinate.cu
  cuda/coordinate_decode.cu
  cuda/coordinate_levels.cu
  cuda/coordinate_price.cu
  cuda/coordinate_weigh.cu
  cuda/coordinate_write.cu
  cuda/factors.cu
  cuda/factors_decode.cu
  cuda/forms_add.cu
  cuda/grid_form.cu
  cuda/half_sums.cu
  cuda/handles.cu
  cuda/low_rank.cu
  cuda/memory.cu
  cuda/outer_products.cu
  cuda/price.cu
  cuda/reduce.cu
  cuda/sketch.cu
  cuda/sketch_basis.cu
  cuda/sketch_eigen.cu
  cuda/sketch_join.cu
  cuda/sketch_products.cu
  cuda/sketch_rows.cu
  cuda/sketch_start.cu
  cuda/sketch_tridiagonal.cu
  cuda/streaming.cu
  cuda/streaming_part.cu
  cuda/svd.cu
  cuda/thinning.cu
  cuda/tile_inverse.cu
  cuda/tile_transform.cu
  cuda/topk_decode.cu
)
# Of the toolkit, beside its runtime.
set(ATOMO_CUDA_LIBRARIES CUDA::cublas CUDA::cusolver)
