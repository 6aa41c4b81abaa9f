module hostloop.csi.dev/test/tools/helm

go 1.26
