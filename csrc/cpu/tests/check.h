// The least a test needs: CHECK says where and what, and the process ends with 1.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                           \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                \
    }                                                                              \
  } while (false)

#define CHECK_THROWS(expression, type) \
  do {                                 \
    bool thrown = false;               \
    try {                              \
      static_cast<void>(expression);   \
    } catch (const type&) {            \
      thrown = true;                   \
    }                                  \
    CHECK(thrown && #expression);      \
  } while (false)
