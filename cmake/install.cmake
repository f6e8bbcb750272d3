# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where: the library, its headers, a CMake package and a pkg-config file.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Until 1.0 a minor release may change the ABI, so it is part of the soname.
set_target_properties(atomo PROPERTIES
  VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/atomo)
set(installed atomo)
if(ATOMO_C)
  list(APPEND installed atomo_c)
endif()
install(TARGETS ${installed} EXPORT atomoTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/atomo
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
install(EXPORT atomoTargets NAMESPACE atomo:: DESTINATION ${package_dir})

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/atomoConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/atomoConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/atomoConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/atomoConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/atomoConfigVersion.cmake ${CMAKE_CURRENT_LIST_DIR}/dependencies.cmake
  DESTINATION ${package_dir})

# A static library leaves its own dependencies to whoever links it.
set(ATOMO_PC_PRIVATE_LIBS "-lblosc -llapacke -lopenblas -lhwy -pthread")
if(ATOMO_WITH_CUDA)
  set(cuda_libraries ${ATOMO_CUDA_LIBRARIES} CUDA::cudart_static)
  list(TRANSFORM cuda_libraries REPLACE "^CUDA::" "-l")
  list(JOIN cuda_libraries " " cuda_libraries)
  string(APPEND ATOMO_PC_PRIVATE_LIBS " -L${CUDAToolkit_LIBRARY_DIR} ${cuda_libraries} -ldl -lrt")
endif()
get_target_property(atomo_type atomo TYPE)
if(atomo_type STREQUAL "STATIC_LIBRARY")
  set(ATOMO_PC_LIBS "-latomo ${ATOMO_PC_PRIVATE_LIBS}")
  set(ATOMO_PC_PRIVATE_LIBS "")
else()
  set(ATOMO_PC_LIBS "-latomo")
endif()
file(RELATIVE_PATH ATOMO_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(${CMAKE_CURRENT_LIST_DIR}/atomo.pc.in ${CMAKE_CURRENT_BINARY_DIR}/atomo.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/atomo.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(ATOMO_C)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/atomo_c.pc.in ${CMAKE_CURRENT_BINARY_DIR}/atomo_c.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/atomo_c.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
