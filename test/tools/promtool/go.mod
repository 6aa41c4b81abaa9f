module hostloop.csi.dev/test/tools/promtool

go 1.26
