# Filled by the library's issue: find_package(brigade), pkg-config, .deb.
